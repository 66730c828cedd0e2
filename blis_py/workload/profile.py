"""Rates that change with time, applied to a constant-rate process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DAY_US = 86_400 * 10**6


@dataclass(frozen=True, slots=True)
class Profile:
    """Rate factor over time: piecewise linear, with optional jumps between the segments.

    The integral of the factor is an operational clock, which runs slower while the factor is below 1. A
    process whose gaps are drawn on that clock has the rate times the factor: a Poisson process becomes
    exactly the inhomogeneous one, any other keeps its gap distribution, as measured on that clock.

    Attributes:
        begin_us: start of each segment, ascending from 0. The last one is unbounded, with its first factor.
        factor, factor_to: at the start of each segment, and at its end.
        period_us: period of repetition; None = none.
        runs_on: the clock does not stop while the factor is 0: arrivals in that time are dropped. For factors
        of 0 and 1 only.
    """

    begin_us: tuple[float, ...]
    factor: tuple[float, ...]
    factor_to: tuple[float, ...]
    period_us: float | None = None
    runs_on: bool = False

    @classmethod
    def steps(cls, begin_us: Sequence[float], factor: Sequence[float], *, runs_on: bool = False) -> Profile:
        """A piecewise constant profile."""
        return cls(tuple(begin_us), tuple(factor), tuple(factor), runs_on=runs_on)

    @classmethod
    def within(cls, windows: Iterable[tuple[float, float]], *, runs_on: bool) -> Profile:
        """A profile of 1 in the windows (from, before), 0 elsewhere."""
        edges = {0.0: 0}
        for begin, end in windows:
            edges[begin] = edges.get(begin, 0) + 1
            edges[end] = edges.get(end, 0) - 1
        begins = sorted(edges)
        under_way = np.cumsum([edges[at] for at in begins])
        return cls.steps(begins, (under_way > 0).astype(float).tolist(), runs_on=runs_on)

    @property
    def end_us(self) -> float:
        """Time after which nothing is sent, in us."""
        if self.period_us is not None or self.factor[-1] > 0:
            return math.inf
        last = max((i for i, each in enumerate(self.factor_to) if each or self.factor[i]), default=-1)
        return self.begin_us[last + 1]

    def passed_us(self, until_us: float) -> float:
        """Operational time at `until_us`."""
        periods, rest_us = divmod(until_us, self.period_us or math.inf)
        total = 0.0
        for begin, length, first, last in self._segments():
            inside_us = min(max(rest_us - begin, 0.0), length)
            slope = 0.0 if math.isinf(length) else (last - first) / length
            total += inside_us * (first + slope * inside_us / 2)
        return total if self.period_us is None else total + periods * self._whole_us()

    def when_us(self, passed_us: Floats) -> Floats:
        """Times of the given operational times; infinity if never reached.

        Where the clock is stopped, the time when it stopped: arrivals one gap apart, the first after one gap,
        fill a window with the number implied by its rate.
        """
        segments = self._segments()
        begin, length, first, last = np.array(segments).T
        slope = np.zeros(len(begin))
        bounded = np.isfinite(length)
        slope[bounded] = (last - first)[bounded] / length[bounded]
        shown = np.zeros(len(begin))
        shown[1:] = np.cumsum(length[:-1] * (first + last)[:-1] / 2)
        whole = np.zeros(len(passed_us))
        if self.period_us is not None:
            whole, passed_us = np.divmod(passed_us, self._whole_us())
        begun_us = np.maximum(passed_us, np.nextafter(0, 1))
        at = np.searchsorted(shown, begun_us, side="left") - 1
        missing_us = passed_us - shown[at]
        root = np.sqrt(np.maximum(first[at] ** 2 + 2 * slope[at] * missing_us, 0.0))
        speed = first[at] + root
        since_us = np.divide(2 * missing_us, speed, out=np.zeros(len(speed)), where=speed > 0)
        never = (first[at] == 0) & (slope[at] == 0)
        since_us[never] = math.inf
        return np.asarray(begin[at] + since_us + whole * (self.period_us or 0.0), dtype=np.float64)

    def on(self, times_us: Floats) -> NDArray[np.bool_]:
        """Mask of the times at which requests are sent, for a profile that does not repeat."""
        at = np.searchsorted(np.array(self.begin_us), times_us, side="right") - 1
        return np.asarray(np.array(self.factor)[at] > 0, dtype=np.bool_)

    def _whole_us(self) -> float:
        """Operational time of one period."""
        return math.fsum(length * (first + last) / 2 for _, length, first, last in self._segments())

    def _segments(self) -> list[tuple[float, float, float, float]]:
        """Start, length, first and last factor of each segment."""
        ends = (*self.begin_us[1:], self.period_us or math.inf)
        lengths = (end - begin for begin, end in zip(self.begin_us, ends, strict=True))
        return list(zip(self.begin_us, lengths, self.factor, self.factor_to, strict=True))


def of_a_day(peak_hour: float, peak_to_trough: float) -> Profile:
    """A cosine over the day, 1 at the peak and 1/`peak_to_trough` twelve hours later, day after day.

    Linear between points ten minutes apart: within 0.03 % of the amplitude.
    """
    points = 144
    hours = np.arange(points + 1) * (24 / points)
    height = (1 + np.cos(2 * math.pi * (hours - peak_hour) / 24)) / 2
    factor = (1 / peak_to_trough + (1 - 1 / peak_to_trough) * height).tolist()
    begins = (np.arange(points) * (DAY_US / points)).tolist()
    return Profile(tuple(begins), tuple(factor[:-1]), tuple(factor[1:]), period_us=DAY_US)


def ramp_down(start_us: float, ramp_us: float) -> Profile:
    """A profile of 1 until the start, then linear down to 0."""
    if not ramp_us:
        return Profile.within([(0.0, start_us)], runs_on=False)
    begins, factors, ends = [0.0, start_us, start_us + ramp_us], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0]
    first = 0 if start_us else 1
    return Profile(tuple(begins[first:]), tuple(factors[first:]), tuple(ends[first:]))
