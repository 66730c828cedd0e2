"""Rate and timing of each source of a workload spec: shares of a rate, rates of windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blis_py.errors import InputError
from blis_py.workload import arrivals
from blis_py.workload._spec_lifecycle import ArrivalSpec, WindowSpec, bounds_of
from blis_py.workload._spec_sources import SpecSource
from blis_py.workload.arrivals import Arrivals
from blis_py.workload.profile import Profile

Rates = list[tuple[float, Profile | None]]


@dataclass(frozen=True, slots=True)
class RatePart:
    """A source's requests, or those of one of its windows if that has its own settings."""

    source: SpecSource
    number: int | None = None
    """Index of the window."""

    @property
    def window(self) -> WindowSpec | None:
        return None if self.number is None else self.source.windows[self.number]

    @property
    def name(self) -> str:
        return "" if self.number is None else f"window {self.number}"

    @property
    def key(self) -> str:
        """Dotted key of the part in the file."""
        own = "" if self.number is None else f".lifecycle.windows[{self.number}]"
        return f"{self.source.key}{own}"

    @property
    def trace_rate(self) -> float | None:
        return None if self.window is None else self.window.trace_rate

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """Intervals (from, before) in which it sends; empty: all the time."""
        return bounds_of(self.source.windows if self.window is None else [self.window])

    @property
    def profile(self) -> Profile | None:
        if not self.source.windows:
            return self.source.profile
        return Profile.within(self.bounds, runs_on=self.window is None)

    def arrivals(self, rate: float, profile: Profile | None, path: Path | None) -> Arrivals | None:
        """Arrivals of each of the source's clients, which share the rate."""
        own = self.window is not None and self.window.arrival is not None
        arrival = self.window.arrival if self.window is not None and own else self.source.spec.arrival
        if arrival is None:
            return None
        rate /= len(self.source.names)
        if arrival.shape is None:
            name = "rate_fraction" if self.trace_rate is None else "trace_rate"
            where = self.source.key if self.trace_rate is None else self.key
            arrivals.check_rate(rate, key=f"{where}.{name}", file=path)
        cv = 1.0 if arrival.cv is None else arrival.cv
        if arrival.exact_count:
            _check_countable(arrival, profile, f"{self.key}.arrival.exact_count", path)
        return Arrivals(arrival.process, rate, cv, arrival.shape, arrival.scale, profile, arrival.exact_count)


def _check_countable(arrival: ArrivalSpec, profile: Profile | None, key: str, path: Path | None) -> None:
    """Require a finite time for an exact count."""
    if arrival.process != "poisson":
        raise InputError(f"has no meaning for {arrival.process}", file=path, key=key, fix="use poisson")
    if profile is None or profile.end_us == math.inf:
        raise InputError("means a time that ends", file=path, key=key, fix="give the client windows")


def parts_of(source: SpecSource) -> list[RatePart]:
    if any(window.overrides for window in source.windows):
        return [RatePart(source, number) for number in range(len(source.windows))]
    return [RatePart(source)]


def rates_of(
    parts: Sequence[RatePart], aggregate: float | None, day: tuple[float, Profile] | None, path: Path | None
) -> Rates:
    """Rate and profile of each part.

    Args:
        aggregate: requests per second of all together; 0 or None: given by windows.
        day: peak and course of the total rate, instead.

    Raises:
        InputError: no rate, or two contradictory ones.
    """
    paced = [part for part in parts if part.source.has_arrivals]
    if not paced:
        return [(0.0, None) for _ in parts]
    by_window = [part for part in paced if part.trace_rate is not None]
    if by_window and len(by_window) < len(paced):
        other = next(part for part in paced if part.trace_rate is None)
        problem = f"{by_window[0].key}.trace_rate is in requests/s, and a share cannot be added to that"
        fix = "give every client windows with a trace_rate, or none"
        raise InputError(problem, file=path, key=other.key, fix=fix)
    if day is not None:
        return _shares_of_day(parts, day, path)
    if by_window and not aggregate:
        return [(part.trace_rate or 0.0, part.profile) for part in parts]
    aggregate = _checked(aggregate, path)
    if by_window:
        return _shares_at_all_times(parts, aggregate)
    overlapping = _overlapping(parts)
    return [
        (aggregate * (part.source.spec.rate_fraction or 0.0) / (total or 1.0), part.profile)
        for part, total in zip(parts, overlapping, strict=True)
    ]


def _checked(aggregate: float | None, path: Path | None) -> float:
    if aggregate is None:
        raise InputError("missing key", file=path, key="aggregate_rate", fix="add it")
    if not aggregate:
        raise InputError("must be greater than 0", file=path, key="aggregate_rate", value=0)
    arrivals.check_rate(aggregate, key="aggregate_rate", file=path)
    return aggregate


def _shares_of_day(parts: Sequence[RatePart], day: tuple[float, Profile], path: Path | None) -> Rates:
    peak, profile = day
    for part in parts:
        source = part.source
        if source.windows or source.profile is not None or source.scale_key is not None:
            problem, fix = "says when clients send, and so does rate_profile", "remove one of the two"
            key = source.scale_key or source.key
            raise InputError(problem, file=path, key=key, fix=fix)
    total = math.fsum(part.source.spec.rate_fraction or 0.0 for part in parts)
    return [(peak * (part.source.spec.rate_fraction or 0.0) / total, profile) for part in parts]


def _overlapping(parts: Sequence[RatePart]) -> list[float]:
    """For each part, the total shares of all sources whose times overlap those of its source."""
    times = {part.source.key: tuple(bounds_of(part.source.windows)) for part in parts}
    shares: dict[tuple[tuple[float, float], ...], list[float]] = {}
    for source in {part.source.key: part.source for part in parts}.values():
        shares.setdefault(times[source.key], []).append(source.spec.rate_fraction or 0.0)
    totals = {
        own: math.fsum(share for theirs in shares if _meet(own, theirs) for share in shares[theirs])
        for own in shares
    }
    return [totals[times[part.source.key]] for part in parts]


def _meet(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> bool:
    if not one or not other:
        return True
    return any(begin < end2 and begin2 < end for begin, end in one for begin2, end2 in other)


def _shares_at_all_times(parts: Sequence[RatePart], aggregate: float) -> Rates:
    """Shares of the rate at any time with senders, proportional to the windows' rates."""
    edges = sorted({0.0}.union(*(bound for part in parts for bound in part.bounds)))
    weights = [part.trace_rate or 0.0 for part in parts]
    shares: list[list[float]] = [[] for _ in parts]
    for begin in edges:
        own = [
            weight if any(first <= begin < last for first, last in part.bounds) else 0.0
            for part, weight in zip(parts, weights, strict=True)
        ]
        total = math.fsum(own)
        for share, weight in zip(shares, own, strict=True):
            share.append(aggregate * weight / total if total else 0.0)
    rates: Rates = []
    for part, share in zip(parts, shares, strict=True):
        peak = max(share)
        fixed = not peak or part.source.scale_key is not None
        profile = part.profile if fixed else Profile.steps(edges, [each / peak for each in share])
        rates.append((peak, profile))
    return rates
