"""Token counts between two bounds, with the mean that was asked for.

Normal lengths that are clamped to their bounds pile up there, and their mean moves: 200 ± 256 tokens between
2 and 7,000 come to 232, more than a fifth of them 2. The *truncated* normal law has no such heap. Of all laws
between the bounds with a given mean and standard deviation it assumes the least beside them. Its own
parameters are solved here so that mean and standard deviation are those asked for.

Not every standard deviation is possible: with the mean near a bound there is no room. As the law widens it
becomes exponential, which is as wide as it gets; wider laws would be heaps at the bounds again.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_MOST_CELLS = 8192
"""As long as there are no more lengths than that, each has a probability of its own."""
_REACH = 60.0
"""How far the law is looked at beyond its mean, in distances of the mean from the bound on the other side:
there exp(-60) of it is left."""
_STEEPEST = 60.0
"""Logarithm of the ratio of neighbouring probabilities."""


class Law(NamedTuple):
    """Probabilities of cells of equal width."""

    first: float
    """Where the first cell begins: half a token below the least length."""
    width: float
    """Of a cell, in tokens."""
    probability: Floats

    @property
    def mean(self) -> float:
        return float(self._centres() @ self.probability)

    @property
    def stdev(self) -> float:
        away = self._centres() - self.mean
        return math.sqrt(float(away**2 @ self.probability))

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Lengths before rounding; one random number each, so that more of them extend fewer."""
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
    """The truncated normal law on whole numbers from `low` to `high`, between which the mean lies.

    It has this mean, and this standard deviation or the largest that such a law can have.
    """
    above, below = max(mean - low, 1.0), max(high - mean, 1.0)
    first, last = max(low, math.floor(mean - _REACH * below)), min(high, math.ceil(mean + _REACH * above))
    cells = min(last - first + 1, _MOST_CELLS)
    width = (last - first + 1) / cells
    place = min(max((mean - first + 0.5) / width - 0.5, 0.0), cells - 1.0)
    return Law(first - 0.5, width, _solve(cells, place, stdev / width))


def clamped_mean(mean: float, stdev: float, low: float, high: float) -> float:
    """Mean of a normal law whose values beyond the bounds are set to them."""
    if stdev == 0:
        return min(max(mean, low), high)

    def mean_excess(bound: float, sign: int) -> float:
        """E[max(sign * (X - bound), 0)]."""
        z = sign * (mean - bound) / stdev
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return stdev * (density + z * math.erfc(-z / math.sqrt(2)) / 2)

    return low + mean_excess(low, 1) - mean_excess(high, 1)


def _solve(cells: int, mean: float, stdev: float) -> Floats:
    """p(i) in proportion to exp(slope * (i - mean) - bend * (i - mean)^2), `bend` at least 0."""
    away: Floats = np.arange(cells, dtype=np.float64) - mean
    probability = _with_mean(away, 0.0)
    if stdev <= 0 or mean in (0.0, cells - 1.0):
        return _all_at(mean, cells)
    if _stdev(probability, away) <= stdev:
        return probability
    low, high = 0.0, 0.5 / stdev**2  # without bounds the wider law's bend; bounds only make it narrower
    for _ in range(50):
        bend = (low + high) / 2
        probability = _with_mean(away, bend)
        low, high = (bend, high) if _stdev(probability, away) > stdev else (low, bend)
        if high - low < 1e-10 * high:
            break
    return probability


def _with_mean(away: Floats, bend: float) -> Floats:
    """The slope that brings the mean to where `away` is 0, by Newton's method between two bounds."""
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
    """Everything at one length, or shared by the two whole ones around it."""
    probability = np.zeros(cells)
    below = min(int(place), cells - 2) if cells > 1 else 0
    probability[below] = 1 - (place - below)
    if cells > 1:
        probability[below + 1] += place - below
    return probability
