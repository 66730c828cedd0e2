"""Token counts between two bounds, with a given mean.

Normal lengths clamped to their bounds accumulate there, and their mean moves: 200 ± 256 tokens between 2 and
7,000 yield 232, more than a fifth of them 2. The *truncated* normal distribution has no such atoms. Among all
distributions between the bounds with a given mean and standard deviation it has maximum entropy. Its
parameters are solved for here, so that mean and standard deviation are the given ones.

Not every standard deviation is possible with the mean near a bound. The widest distribution of this family is
exponential; wider ones would again have atoms at the bounds.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_MOST_CELLS = 8192
"""Largest number of lengths with an individual probability each."""
_REACH = 60.0
"""Extent of the distribution beyond its mean, in distances of the mean from the opposite bound: exp(-60) of
it remains there."""
_STEEPEST = 60.0
"""Largest logarithm of the ratio of neighbouring probabilities."""


class Law(NamedTuple):
    """Probabilities of cells of equal width."""

    first: float
    """Lower edge of the first cell: half a token below the smallest length."""
    width: float
    """Width of a cell, in tokens."""
    probability: Floats

    @property
    def mean(self) -> float:
        return float(self._centres() @ self.probability)

    @property
    def stdev(self) -> float:
        away = self._centres() - self.mean
        return math.sqrt(float(away**2 @ self.probability))

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Lengths before rounding; one random number each, so that a longer draw extends a shorter one."""
        ends = np.cumsum(self.probability)
        drawn = rng.random(count) * ends[-1]
        cell = np.minimum(np.searchsorted(ends, drawn, side="right"), len(ends) - 1)
        within = (drawn - ends[cell]) / self.probability[cell] + 1
        lengths: Floats = self.first + self.width * (cell + np.clip(within, 0.0, 1 - 1e-9))
        return lengths

    def _centres(self) -> Floats:
        centres: Floats = self.first + self.width * (np.arange(len(self.probability), dtype=np.float64) + 0.5)
        return centres


@lru_cache(maxsize=64)
def truncated_law(mean: float, stdev: float, low: int, high: int) -> Law:
    """The truncated normal distribution on whole numbers from `low` to `high`, which enclose the mean.

    It has this mean, and this standard deviation or the largest possible one.
    """
    above, below = max(mean - low, 1.0), max(high - mean, 1.0)
    first, last = max(low, math.floor(mean - _REACH * below)), min(high, math.ceil(mean + _REACH * above))
    cells = min(last - first + 1, _MOST_CELLS)
    width = (last - first + 1) / cells
    place = min(max((mean - first + 0.5) / width - 0.5, 0.0), cells - 1.0)
    return Law(first - 0.5, width, _solve(cells, place, stdev / width))


def clamped_mean(mean: float, stdev: float, low: float, high: float) -> float:
    """Mean of a normal distribution clamped to the bounds."""
    if stdev == 0:
        return min(max(mean, low), high)

    def mean_excess(bound: float, sign: int) -> float:
        """E[max(sign * (X - bound), 0)]."""
        z = sign * (mean - bound) / stdev
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return stdev * (density + z * math.erfc(-z / math.sqrt(2)) / 2)

    return low + mean_excess(low, 1) - mean_excess(high, 1)


def _solve(cells: int, mean: float, stdev: float) -> Floats:
    """p(i) proportional to exp(slope * (i - mean) - bend * (i - mean)^2), `bend` at least 0."""
    away: Floats = np.arange(cells, dtype=np.float64) - mean
    probability = _with_mean(away, 0.0)
    if stdev <= 0 or mean in (0.0, cells - 1.0):
        return _all_at(mean, cells)
    if _stdev(probability, away) <= stdev:
        return probability
    low, high = 0.0, 0.5 / stdev**2  # the unbounded distribution's bend; bounds only narrow it
    for _ in range(50):
        bend = (low + high) / 2
        probability = _with_mean(away, bend)
        low, high = (bend, high) if _stdev(probability, away) > stdev else (low, bend)
        if high - low < 1e-10 * high:
            break
    return probability


def _with_mean(away: Floats, bend: float) -> Floats:
    """The slope at which the mean has `away` = 0, by bracketed Newton iteration."""
    bent = -bend * away**2
    low, high, slope = -_STEEPEST, _STEEPEST, 0.0
    for _ in range(200):
        exponent = slope * away + bent
        weights = np.exp(exponent - exponent.max())
        probability: Floats = weights / weights.sum()
        error = float(probability @ away)
        if abs(error) < 1e-9 or high - low < 1e-15:
            break
        low, high = (low, slope) if error > 0 else (slope, high)
        variance = float(probability @ away**2) - error**2
        slope -= error / variance if variance > 0 else math.inf
        if not low < slope < high:
            slope = (low + high) / 2
    return probability


def _stdev(probability: Floats, away: Floats) -> float:
    return math.sqrt(float(probability @ away**2))


def _all_at(place: float, cells: int) -> Floats:
    """All probability at one length, or at the two whole numbers around it."""
    probability = np.zeros(cells)
    below = min(int(place), cells - 2) if cells > 1 else 0
    probability[below] = 1 - (place - below)
    if cells > 1:
        probability[below + 1] += place - below
    return probability
