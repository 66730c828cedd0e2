"""What the figures of a run are drawn from: one that has just ended, or one read from its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.distribution import NS_PER_MS, Distribution
from blis_py.metrics.groups import Rows, rows_by_name, slo_classes
from blis_py.metrics.itl import TokenGaps
from blis_py.metrics.latencies import latencies
from blis_py.metrics.record import RunRecord
from blis_py.metrics.registry import METRICS, limitable
from blis_py.metrics.registry import columns as metric_columns
from blis_py.metrics.slo import ANY_CLASS, GoodputTargets, parse_slos

Floats = NDArray[np.float64]
Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Limit:
    """A latency that somebody promised."""

    metric: str
    ms: float
    text: str
    slo_class: str | None = None
    share: float | None = None
    """The percentile that should be below, where it is one."""


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One instance over time."""

    num_kv_blocks: int
    steps: Columns | None
    """Columns of the steps table; `None` = they were not recorded."""


@dataclass(frozen=True)
class RunView:
    """See the module; request columns have one row per request, in order of arrival."""

    config: Mapping[str, Any]
    classes: Mapping[str, Rows]
    """Rows of each SLO class, the most urgent first."""
    completed: NDArray[np.bool_]
    arrival_s: Floats
    finish_s: Floats
    output_tokens: NDArray[np.int64]
    latency_ms: Mapping[str, Floats]
    """`ttft`, `tpot`, `itl_mean`, `e2e`, `scheduling_delay`; NaN where a request did not get that far."""
    instances: Sequence[InstanceView]
    end_s: float
    gaps: Callable[[Rows], Distribution] | None
    """All inter-token latencies of some requests, in ns; `None` = only each request's mean is known."""
    limits: Sequence[Limit] = ()

    def __len__(self) -> int:
        return len(self.completed)

    def samples(self, metric: str, rows: Rows) -> Distribution:
        """A latency of these requests in ms; of ITL the gaps of all tokens, where they are known."""
        if metric == "itl" and self.gaps is not None:
            gaps = self.gaps(rows[self.completed[rows]])
            return Distribution(gaps.values / NS_PER_MS, gaps.weights, gaps.upto)
        values = self.latency_ms[METRICS[metric].column][rows]
        return Distribution.of(values[~np.isnan(values)])

    @classmethod
    def of(cls, record: RunRecord, targets: GoodputTargets | None = None) -> RunView:
        """A run that has just ended; `targets` are what its good requests meet."""
        columns = latencies(record)
        return cls(
            config=record.config,
            classes=rows_by_name(slo_classes(record)),
            completed=columns.completed,
            arrival_s=record.table.arrival_ns / 1e9,
            finish_s=np.where(record.finish_ns >= 0, record.finish_ns / 1e9, np.nan),
            output_tokens=record.emitted_tokens,
            latency_ms={name: columns.column(name) / NS_PER_MS for name in metric_columns()},
            instances=[InstanceView(one.num_kv_blocks, _columns(one.runs)) for one in record.instances],
            end_s=record.end_ns / 1e9,
            gaps=TokenGaps(record).distribution,
            limits=limits_of(record.config, targets),
        )


def _columns(runs: Any) -> Columns | None:
    """All columns of a steps table, in one pass."""
    if runs is None or isinstance(runs, Mapping):
        return runs
    parts = list(runs.parts())
    return {name: np.concatenate([part[name] for part in parts]) for name in runs.names}


def limits_of(config: Mapping[str, Any], targets: GoodputTargets | None = None) -> list[Limit]:
    """What was promised of the run (`--slo`), and of every request (`--goodput` and its like)."""
    found = []
    for check in parse_slos(config.get("slo") or ()):
        share = float(check.stat[1:]) if check.stat.startswith("p") else None
        text = f"{check.slo_class + ' ' if check.slo_class else ''}{check.metric.upper()} {check.stat}"
        found.append(Limit(check.metric, check.limit_ns / NS_PER_MS, text, check.slo_class, share))
    for name, limits in (targets.limits_ns if targets else {}).items():
        for metric in limitable():
            if metric in limits:
                own = None if name == ANY_CLASS else name
                text = f"good{f' {own}' if own else ''} {metric.upper()}"
                found.append(Limit(metric, limits[metric] / NS_PER_MS, text, own))
    return found
