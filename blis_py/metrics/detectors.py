"""Saturation detectors in retrospect: the level each reports after every arrival and end of a run, and
why.

They are those of BLIS, where they see only completed requests, so that a cluster that rejects half of its
requests looks stable. Here every arrival counts, and an unanswered request stays unanswered.

A detector is a class and a line in `DETECTORS`. The verdict reported with every run is a different one, see
`blis_py.metrics.load`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from blis_py.core.bounds import SECOND_NS
from blis_py.metrics.latencies import completed_mask
from blis_py.metrics.record import RunRecord

STABLE, BACKLOGGED, OVERLOADED = "STABLE", "BACKLOGGED", "OVERLOADED"
LEVELS = (STABLE, BACKLOGGED, OVERLOADED)
"""From good to bad."""


@dataclass(frozen=True, slots=True)
class DetectorSettings:
    """Parameters of the detectors."""

    threshold_ns: int = 5 * SECOND_NS
    """For `threshold`: mean E2E at which the cluster is overloaded."""
    window_ns: int = 60 * SECOND_NS
    """For `backlog-drift`: interval at which the backlog is sampled."""


@dataclass(frozen=True, slots=True)
class Event:
    """An arrival, or the end of a request."""

    time_ns: int
    arrives: bool
    e2e_ns: int | None = None
    """E2E of a completed request."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A detector's level, and its evidence."""

    level: str
    score: float
    confidence: float
    signals: dict[str, float] = field(default_factory=dict)


class Detector(Protocol):
    """A detector receives one event after another, and reports its finding so far."""

    def __call__(self, event: Event) -> Finding: ...


class Composite:
    """Completions that lag behind arrivals, or latencies that rise from quarter to quarter.

    Both count only above the noise of this many arrivals, 1 / sqrt(arrivals).
    """

    _MIN = 20
    """Completions below which trends are ignored; arrivals from which on confidence is full."""

    def __init__(self, settings: DetectorSettings) -> None:
        self._arrivals = 0
        self._sums = [0]
        """Prefix sums of latencies in the order of completion, ns."""

    def __call__(self, event: Event) -> Finding:
        self._arrivals += event.arrives
        if event.e2e_ns is not None:
            self._sums.append(self._sums[-1] + event.e2e_ns)
        completed, floor = len(self._sums) - 1, 1 / math.sqrt(self._arrivals)
        deficit = max(0.0, 1 - completed / self._arrivals)
        raw, rises = self._trend(completed), self._rises(completed)
        trend = raw if rises else 0.0
        score = max(deficit, trend)
        level = STABLE if score < floor else OVERLOADED if trend > floor else BACKLOGGED
        signals = {"latency_trend": trend, "latency_trend_raw": raw, "noise_floor": floor}
        signals |= {"quartile_monotone": float(rises), "rate_deficit": deficit}
        return Finding(level, score, min(1.0, self._arrivals / self._MIN), signals)

    def _trend(self, completed: int) -> float:
        """Relative increase of latency from the first half to the second; at most 1."""
        if completed < 2:
            return 0.0
        first = self._mean(0, completed // 2)
        second = self._mean(completed // 2, completed)
        return min(1.0, max(0.0, (second - first) / first)) if first else 0.0

    def _rises(self, completed: int) -> bool:
        if completed < self._MIN:
            return False
        edges = [*(quarter * (completed // 4) for quarter in range(4)), completed]
        means = [self._mean(begin, end) for begin, end in pairwise(edges)]
        return all(before < after for before, after in pairwise(means))

    def _mean(self, begin: int, end: int) -> float:
        return (self._sums[end] - self._sums[begin]) / (end - begin)


class Threshold:
    """The mean E2E of all completions so far, compared with a limit."""

    def __init__(self, settings: DetectorSettings) -> None:
        self._limit_ns, self._sum_ns, self._completed = settings.threshold_ns, 0, 0

    def __call__(self, event: Event) -> Finding:
        if event.e2e_ns is not None:
            self._sum_ns += event.e2e_ns
            self._completed += 1
        if not self._completed:
            return Finding(STABLE, 0.0, 0.0)
        mean_ns = self._sum_ns / self._completed
        share = mean_ns / self._limit_ns
        signals = {"mean_e2e": mean_ns / 1e6, "threshold": self._limit_ns / 1e6}
        confidence = 1 - 1 / math.sqrt(self._completed + 1)
        if share < 1:
            return Finding(STABLE, share / 2, confidence, signals)
        return Finding(OVERLOADED, 0.75 + min(0.25, (share - 1) / 4), confidence, signals)


class BacklogDrift:
    """The slope of a line through the backlog at the end of each window, compared with the noise."""

    def __init__(self, settings: DetectorSettings) -> None:
        self._window_ns = settings.window_ns
        self._arrivals = self._completed = self._in_flight = 0
        self._window = -1
        """The latest window seen."""
        self._windows = self._sum = self._weighted = 0
        """Number of windows, the sum of their backlogs, and of backlog times index."""

    def __call__(self, event: Event) -> Finding:
        before = self._in_flight
        self._arrivals += event.arrives
        self._completed += event.e2e_ns is not None
        self._in_flight += 1 if event.arrives else -1
        self._advance(event.time_ns // self._window_ns, before)
        slope, floor = self._slope(), 1 / math.sqrt(self._arrivals)
        level = STABLE if slope <= floor else BACKLOGGED if slope <= 3 * floor else OVERLOADED
        signals = {"arrivals": self._arrivals, "completions": self._completed, "in_flight": self._in_flight}
        return Finding(
            level,
            min(1.0, max(0.0, slope) / (3 * floor)),
            min(1.0, self._arrivals / 20),
            {**signals, "noise_floor": floor, "running_slope": slope},
        )

    def _advance(self, window: int, before: int) -> None:
        """Windows without events have the backlog of the previous one."""
        new = 1 if self._window < 0 else window - self._window
        for place in range(self._windows, self._windows + new):
            self._sum += before
            self._weighted += before * place
        self._windows, self._window = self._windows + new, window
        change = self._in_flight - before
        self._sum += change
        self._weighted += change * (self._windows - 1)

    def _slope(self) -> float:
        """Slope per window, by least squares."""
        n = self._windows
        if n < 2:
            return 0.0
        places, squares = n * (n - 1) // 2, (n - 1) * n * (2 * n - 1) // 6
        return (n * self._weighted - places * self._sum) / (n * squares - places * places)


DETECTORS: dict[str, Callable[[DetectorSettings], Detector]] = {
    "composite": Composite,
    "threshold": Threshold,
    "backlog-drift": BacklogDrift,
}
"""Name -> factory of the detector."""


@dataclass(frozen=True)
class Saturation:
    """Findings of detectors for a run."""

    times_ns: list[int]
    """Times of the events."""
    findings: dict[str, list[Finding]]
    """One finding per event, by detector."""
    window_ns: int
    """Length of the end of the run that determines the final level."""

    @property
    def final(self) -> dict[str, str]:
        """The most frequent level towards the end, by detector; ties go to the worse."""
        if not self.times_ns:
            return dict.fromkeys(self.findings, STABLE)
        begin_ns = self.times_ns[-1] - self.window_ns
        first = next(index for index, time_ns in enumerate(self.times_ns) if time_ns >= begin_ns)
        return {name: _most_often(finding[first:]) for name, finding in self.findings.items()}

    def report(self) -> dict[str, Any]:
        """BLIS's format: the final levels, and every finding, at times in µs."""
        trace = [
            {"timestamp": time_ns // 1000, "detector": name, "result": asdict(finding[index])}
            for index, time_ns in enumerate(self.times_ns)
            for name, finding in self.findings.items()
        ]
        return {"final": dict(sorted(self.final.items())), "trace": trace}


def _most_often(findings: Sequence[Finding]) -> str:
    counts = {level: sum(one.level == level for one in findings) for level in LEVELS}
    return max(LEVELS, key=lambda level: (counts[level], LEVELS.index(level)))


def detect(
    events: Iterable[Event], names: Iterable[str], settings: DetectorSettings, window_ns: int
) -> Saturation:
    """The findings of the named detectors after each event.

    Args:
        events: in order of time.
        window_ns: window of the final level.
    """
    detectors = {name: DETECTORS[name](settings) for name in names}
    times_ns: list[int] = []
    findings: dict[str, list[Finding]] = {name: [] for name in detectors}
    for event in events:
        times_ns.append(event.time_ns)
        for name, finding in findings.items():
            finding.append(detectors[name](event))
    return Saturation(times_ns, findings, window_ns)


def events_of(record: RunRecord) -> Iterator[Event]:
    """Arrivals and ends of all requests, in order of time; of the same nanosecond, arrivals come first."""
    arrival_ns, finish_ns = record.table.arrival_ns, record.finish_ns
    ended = np.flatnonzero(finish_ns >= 0)
    done = completed_mask(record)
    times = np.concatenate((arrival_ns, finish_ns[ended]))
    order = np.argsort(times, kind="stable")
    rows = np.concatenate((np.arange(len(arrival_ns)), ended))
    for place in order.tolist():
        row = int(rows[place])
        arrives = place < len(arrival_ns)
        e2e_ns = None if arrives or not done[row] else int(finish_ns[row] - arrival_ns[row])
        yield Event(int(times[place]), arrives, e2e_ns)
