"""A quick answer from contiguous windows of the arrivals at the true rate, and the band of the whole run.

Two windows are simulated: one of average demand, which is shown, and the one of highest demand. The band of a
figure spans both, widened by factors that were calibrated on random configurations, and further where the
backlog still grows at the end of a window: an overloaded cluster waits longer the longer the run is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blis_py.metrics.latencies import latencies
from blis_py.result import Result
from blis_py.setup.setup import Progress, Setup

WINDOW = 900
"""Requests of a window."""
BANDED = {
    "cluster.throughput.output_tokens_per_s": (0.70, 1.45),
    "cluster.ttft_ms.p50": (0.55, 1.45),
    "cluster.ttft_ms.p99": (0.45, 2.2),
    "cluster.tpot_ms.p50": (0.72, 1.25),
    "cluster.tpot_ms.p99": (0.55, 1.9),
    "cluster.e2e_ms.p50": (0.65, 1.35),
    "cluster.e2e_ms.p99": (0.60, 1.7),
}
"""Figures with a band: factors below the lower and above the higher window."""
_GROWS = 1.5
"""Ratio of the waiting times of a window's last and first third from which its backlog counts as growing."""

Run = Callable[[Setup], Result]


@dataclass(frozen=True)
class Sample:
    """The answer from windows.

    Attributes:
        result: of the window that is shown.
        first: index of its first request.
        bands: lower and upper end by path in the summary.
    """

    result: Result
    first: int
    bands: Mapping[str, tuple[float, float]]


def divisible(simulation: Setup) -> bool:
    """Whether a part of the arrivals can be simulated by itself, and is worth it."""
    config = simulation.config
    alone = simulation.loops is None and config.workload.concurrency is None and simulation.kind is None
    return alone and len(simulation.table) > 3 * WINDOW


def sample(simulation: Setup, run: Run) -> Sample:
    """Simulate windows of a divisible simulation."""
    whole = len(simulation.table)
    average, busiest = _average(simulation), int(simulation.table.busiest(WINDOW))
    results = [run(_window(simulation, first)) for first in (average, busiest)]
    growth = max(_growth(result) for result in results)
    stretch = whole / WINDOW if growth > _GROWS else 1.0
    summaries = [result.summary for result in results]
    found = {}
    for path, (low, high) in BANDED.items():
        values = [value for each in summaries if (value := _at(each, path)) is not None]
        if values:
            further = 1.0 if path.startswith(("cluster.throughput", "cluster.tpot")) else stretch
            found[path] = (min(values) * low, max(values) * high * further)
    return Sample(results[0], average, found)


def _window(simulation: Setup, first: int) -> Any:
    """The simulation of a window, from time zero."""
    table = simulation.table.take(slice(first, first + WINDOW))
    begin_ns = int(table.arrival_ns[0])
    config = replace(simulation.config, horizon=None, drain=True)
    deadlines = np.where(table.deadline_ns >= 0, table.deadline_ns - begin_ns, table.deadline_ns)
    table = replace(table, arrival_ns=table.arrival_ns - begin_ns, deadline_ns=deadlines)
    return replace(simulation, table=table, config=config)


def _average(simulation: Setup) -> int:
    """First request of the window whose demand is nearest to the mean of all."""
    table = simulation.table
    work = np.concatenate(([0.0], np.cumsum(table.prompt_tokens + 8.0 * table.output_tokens)))
    firsts = np.arange(0, len(table) - WINDOW, max(1, WINDOW // 4))
    span_ns = table.arrival_ns[firsts + WINDOW - 1] - table.arrival_ns[firsts] + 1
    demand = (work[firsts + WINDOW] - work[firsts]) / span_ns
    mean = work[-1] / max(int(table.arrival_ns[-1] - table.arrival_ns[0]), 1)
    return int(firsts[np.argmin(np.abs(np.log(demand / mean)))])


def _growth(result: Result) -> float:
    """Waiting time of the last third of the requests over that of the first."""
    delays = latencies(result.record).column("scheduling_delay")
    third = max(len(delays) // 3, 1)
    first, last = (
        np.nanmean(part) if np.isfinite(part).any() else 0.0 for part in (delays[:third], delays[-third:])
    )
    return float((last + 1e6) / (first + 1e6))


def _at(values: Any, path: str) -> float | None:
    for name in path.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values if isinstance(values, int | float) else None


def runner(progress: Progress | None) -> Run:
    """Simulate with recorded steps."""

    def run(simulation: Any) -> Result:
        result: Result = simulation.run(record_steps=True, progress=progress)
        return result

    return run
