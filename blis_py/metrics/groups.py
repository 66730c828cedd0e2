"""Partition of a run's requests by a label: by SLO class, by tenant."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from blis_py.core.slo import CLUSTER_PRIORITY, DEFAULT_CLASS
from blis_py.metrics.record import RunRecord
from blis_py.metrics.visits import instance_order
from blis_py.requests.table import Labels, RequestTable

Rows = NDArray[np.intp]

SLO_CLASSES = tuple(sorted(CLUSTER_PRIORITY, key=lambda name: -CLUSTER_PRIORITY[name]))
"""The standard classes, most urgent first; reports follow this order, then the alphabet."""


def slo_classes(record: RunRecord) -> Labels:
    """The class of every request of a run."""
    return classes_of(record.table)


def classes_of(table: RequestTable) -> Labels:
    """The class of every request; requests without one count as `standard`, as in scheduling."""
    return with_default(table.slo_class, DEFAULT_CLASS)


def tenants(record: RunRecord) -> Labels:
    """The tenant of every request; `default` if it has none."""
    return with_default(record.table.tenant, "default")


def rows_by_name(labels: Labels) -> dict[str, Rows]:
    """Rows of each label that occurs, in report order."""
    order = np.argsort(labels.codes, kind="stable")
    counts = np.bincount(labels.codes, minlength=len(labels.names))
    parts = np.split(order, np.cumsum(counts)[:-1])
    rows_of = {name: rows for name, rows in zip(labels.names, parts, strict=True) if len(rows)}
    return {name: rows_of[name] for name in sorted(rows_of, key=report_order)}


def rows_by_instance(record: RunRecord) -> list[Rows]:
    """Rows dispatched to each instance."""
    order = instance_order(record.instance)
    edges = np.searchsorted(record.instance[order], np.arange(len(record.instances) + 1))
    return [order[start:end] for start, end in pairwise(edges)]


def with_default(labels: Labels, default: str) -> Labels:
    """Labels with the default in place of unset ones, merged with any label of that name."""
    names = [name or default for name in labels.names]
    unique = tuple(dict.fromkeys(names))
    codes = np.array([unique.index(name) for name in names], dtype=np.int32)
    return Labels(codes[labels.codes], unique)


def report_order(name: str) -> tuple[int, str]:
    """Sort key of SLO classes: the standard ones first, in their order."""
    return (SLO_CLASSES.index(name) if name in SLO_CLASSES else len(SLO_CLASSES), name)
