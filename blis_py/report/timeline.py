"""Running, waiting and KV use over time, from the compact steps table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.record import InstanceRecord, RunRecord

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Averages over equal slices of the run; matrices have one row per instance."""

    time_s: Floats
    """Middle of each slice."""
    running: Floats
    waiting: Floats
    kv_pct: Floats


def timeline(record: RunRecord, slices: int = 400) -> Timeline | None:
    """The state of every instance over time, or `None` if the run did not record its steps."""
    recorded = [instance for instance in record.instances if instance.runs is not None]
    if not recorded or not record.end_ns:
        return None
    edges = np.linspace(0, record.end_ns, slices + 1)

    def over_time(column: str) -> Floats:
        return np.stack([_average(instance, column, edges) for instance in recorded])

    blocks = np.array([[instance.num_kv_blocks] for instance in recorded])
    return Timeline(
        time_s=(edges[1:] + edges[:-1]) / 2e9,
        running=over_time("running"),
        waiting=over_time("waiting"),
        kv_pct=100 * over_time("kv_blocks") / blocks,
    )


def _average(instance: InstanceRecord, column: str, edges: Floats) -> Floats:
    """Time average of a column between the edges; 0 while the instance is idle."""
    runs = instance.runs
    if runs is None or not len(runs):
        return np.zeros(len(edges) - 1)
    start, end = runs["start_ns"].astype(np.float64), runs["end_ns"].astype(np.float64)
    area_at_end = np.cumsum((end - start) * runs[column])
    area_at_start = np.concatenate(([0.0], area_at_end[:-1]))
    moments = np.stack((start, end), axis=1).ravel()
    area = np.stack((area_at_start, area_at_end), axis=1).ravel()
    averages: Floats = np.diff(np.interp(edges, moments, area)) / np.diff(edges)
    return averages
