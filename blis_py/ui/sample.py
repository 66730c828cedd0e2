"""A quick answer from contiguous windows of the arrivals at the true rate, and the band of the whole run.

Two windows are simulated: one of average demand, which is shown, and the one of highest demand. The band of a
figure spans both, widened by factors that were calibrated on random configurations, and further where the
backlog still grows at the end of a window: an overloaded cluster waits longer the longer the run is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from blis_py.metrics.latencies import latencies
from blis_py.result import Result
from blis_py.setup.setup import Progress, Setup

WINDOW = 900
"""Requests of a window."""


Factors = tuple[float, float]


class SampleBand(NamedTuple):
    """Factors of a figure below the lower and above the higher window.

    Attributes:
        settled: where the backlog is as it was when a window ends.
        rising: where it has grown a little, so that the cluster may be near its limit.
        growing: where it grows.
        stretches: whether a growing figure rises in proportion to the length of the run.
    """

    settled: Factors
    rising: Factors
    growing: Factors
    stretches: bool = False


BANDED = {
    "cluster.throughput.output_tokens_per_s": SampleBand((0.8, 1.7), (0.6, 1.7), (0.25, 1.7)),
    "cluster.ttft_ms.p50": SampleBand((0.33, 1.5), (0.3, 5.0), (0.3, 14.0), stretches=True),
    "cluster.ttft_ms.p99": SampleBand((0.7, 1.9), (0.5, 8.0), (0.03, 7.0), stretches=True),
    "cluster.tpot_ms.p50": SampleBand((0.6, 1.2), (0.6, 2.6), (0.4, 2.6)),
    "cluster.tpot_ms.p99": SampleBand((0.6, 1.4), (0.4, 2.0), (0.25, 3.5)),
    "cluster.e2e_ms.p50": SampleBand((0.6, 1.4), (0.5, 3.2), (0.4, 2.0), stretches=True),
    "cluster.e2e_ms.p99": SampleBand((0.75, 1.7), (0.6, 5.0), (0.5, 2.0), stretches=True),
}
"""Calibrated on random configurations (benchmarks/ui_bands.py, seeds 4, 5 and 10)."""
_RISES = (1.25, 1.3, 1.6)
_GROWS = (2.0, 1.3, 2.6)
"""Growth of waiting times and, at the same time, of the requests in the cluster from which a window is rising
or growing; or of the requests alone."""

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
    changes = [growth(result) for result in results]
    summaries = [result.summary for result in results]
    ranges = {}
    for path, band in BANDED.items():
        values = [value for each in summaries if (value := at(each, path)) is not None]
        if values:
            low, high, stretch = factors(band, changes, whole / WINDOW)
            ranges[path] = (min(values) * low, max(values) * high * stretch)
    return Sample(results[0], average, ranges)


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


def factors(
    band: SampleBand, changes: Sequence[tuple[float, float]], windows: float
) -> tuple[float, float, float]:
    """Factors of the lower and upper end of a band, and another of the upper one for the length of the run.

    Args:
        changes: `growth` of each window.
        windows: length of the run in windows.
    """
    if _any(changes, *_GROWS):
        return (*band.growing, windows if band.stretches else 1.0)
    return (*(band.rising if _any(changes, *_RISES) else band.settled), 1.0)


def _any(changes: Sequence[tuple[float, float]], slower: float, fuller: float, alone: float) -> bool:
    return any((delay > slower and requests > fuller) or requests > alone for delay, requests in changes)


def growth(result: Result) -> tuple[float, float]:
    """Growth of waiting times over a window, and of the requests in the cluster over its second half."""
    record = result.record
    delays = latencies(record).column("scheduling_delay")
    third = max(len(delays) // 3, 1)
    parts = (delays[:third], delays[-third:])
    first, last = (np.nanmean(part) if np.isfinite(part).any() else 0.0 for part in parts)
    arrivals_ns = record.table.arrival_ns
    ends_ns = np.sort(np.where(record.finish_ns >= 0, record.finish_ns, record.end_ns))
    half, whole = (
        int(np.searchsorted(arrivals_ns, at_ns, side="right") - np.searchsorted(ends_ns, at_ns, side="right"))
        for at_ns in (int(arrivals_ns[-1]) // 2, int(arrivals_ns[-1]))
    )
    return float((last + 1e6) / (first + 1e6)), (whole + 5) / (half + 5)


def at(values: Any, path: str) -> float | None:
    for name in path.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values if isinstance(values, int | float) else None


def runner(progress: Progress | None, *, steps: bool = True) -> Run:
    """A function that simulates.

    Args:
        steps: record them.
    """

    def run(simulation: Any) -> Result:
        result: Result = simulation.run(record_steps=steps, progress=progress)
        return result

    return run
