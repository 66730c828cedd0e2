"""Goodput as BLIS (inference-sim) counts it, which differs from our definition (docs/metrics.md).

A request without a class belongs to class `default` and has the limits of that name; a class without limits
of its own is unconstrained and does not count. Every arrival of a class counts, including rejected and
unfinished ones; the attainment of single limits is over completed requests only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.distribution import Distribution, in_ms
from blis_py.metrics.groups import rows_by_name
from blis_py.metrics.latencies import Latencies
from blis_py.metrics.record import RunRecord
from blis_py.metrics.slo import ANY_CLASS, GoodputTargets

Rows = NDArray[np.intp]


def blis_goodput(
    record: RunRecord, columns: Latencies, targets: GoodputTargets, duration_s: float, *, every_class: bool
) -> dict[str, Any]:
    """Overall and by class.

    Args:
        every_class: whether the limits of `default` also apply to classes without limits, because the user
        set them for all.

    Returns:
        Empty if no request has a limit.
    """
    labels = record.table.slo_class
    names = tuple(name or ANY_CLASS for name in labels.names)
    unique = tuple(dict.fromkeys(names))
    codes = np.array([unique.index(name) for name in names], dtype=np.int32)[labels.codes]
    per_class, good, held = {}, 0, 0
    for name, rows in rows_by_name(replace(labels, codes=codes, names=unique)).items():
        limits = targets.of_class(name) if every_class else targets.limits_ns.get(name, {})
        if limits:
            per_class[name], met = _of_class(columns, rows, limits, duration_s)
            good += met
            held += len(rows)
    if not per_class:
        return {}
    return {
        "goodput_rps": good / duration_s if duration_s else 0.0,
        "slo_attainment": good / held,
        "per_class": per_class,
    }


def _of_class(
    columns: Latencies, rows: Rows, limits: Mapping[str, float], duration_s: float
) -> tuple[dict[str, Any], int]:
    """Report on one class, and its number of good requests."""
    done = rows[columns.completed[rows]]
    met = {name: np.nan_to_num(columns.column(name)[done]) <= limit for name, limit in limits.items()}
    good = int(np.logical_and.reduce([*met.values()]).sum())
    ttft_ns = columns.ttft_ns[rows]
    return {
        "count": len(rows),
        "goodput_rps": good / duration_s if duration_s else 0.0,
        "slo_attainment": good / len(rows),
        "slo_attainment_by_dim": {
            name: float(held.mean()) if len(done) else 0.0 for name, held in met.items()
        },
        "ttft_p99_ms": in_ms(Distribution.of(ttft_ns[~np.isnan(ttft_ns)]).percentile(99)),
        "itl_mean_ms": in_ms(Distribution.of(np.nan_to_num(columns.itl_mean_ns[done])).mean()),
        "e2e_p99_ms": in_ms(Distribution.of(columns.e2e_ns[done]).percentile(99)),
    }, good
