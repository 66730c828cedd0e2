"""Errors of simulated runs as linear functions of the numbers of a server, and the numbers that explain them.

Arrays are (TTFT and TPOT, slice of time, group); slopes have the numbers as a last axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.calibrate.fit.server_runs import GROUPS, NAMES, SLICES, Floats
from blis_py.files.packages import scipy

Mask = NDArray[np.bool_]

_RANGE = np.array([0.5, 2000.0, 100.0, 5.0, 0.2, 0.01])
"""Deviation from the preset that counts as much as an error of `_WEIGHT`."""
_WEIGHT = 0.0001
LOW, HIGH = np.array([0.05, 0.0, 0.0, 0.0, 0.0, 0.0]), np.array([20.0, 1e6, 1e5, 1e5, 1e4, 1e3])
SETTLED = np.array([0.0025, 10.0, 0.5, 0.1, 0.003, 0.0003])
"""Convergence threshold, and the least deviation from the preset."""
OF_STEPS = np.array([True, True, True, False, False, False])
CONSTANT = np.array([False, False, False, True, False, False])
"""The constant delay of the front end, which is fitted in any case."""
_AMPLIFIED = 1.2
"""Relative change of TTFT over that of step times above which requests queue."""
_PROMPTS = 0.25
"""Weight of TTFT beside TPOT for numbers of steps."""
BOUNDS, _REWEIGHTED = (0.3, 0.3), 4
_PARTS, _DRAWS = 4, 200
_FIRM = 2.0
"""Size of a change, in multiples of the scatter, from which on all of it is kept."""
_LEAST = 0.02
"""Smallest factor of a prediction that slopes may lead to."""


@dataclass(frozen=True)
class Linearised:
    """Errors near `numbers`, by their slopes there."""

    numbers: Floats
    misses: Floats
    """Measured over predicted, minus one."""
    slopes: Floats
    """Relative change of the prediction with each number."""
    weights: Floats
    prior: Floats
    """The numbers of the preset."""
    counted: Floats
    """Weights in `solve`; see `calm`."""
    bounds: tuple[float, float]
    """Errors of TTFT and TPOT beyond which they count linearly."""

    def left(self, solved: Floats, part: Any = np.s_[:]) -> Floats:
        """Errors that other numbers leave in a part of the arrays."""
        changed = np.maximum(1 + self.slopes[part] @ (solved - self.numbers), _LEAST)
        left: Floats = (1 + self.misses[part]) / changed - 1
        return left

    def solve(self, free: Mask) -> Floats:
        """Numbers that explain the errors together, by robust least squares: errors beyond a bound count
        linearly. Only free ones change; the preset's are preferred, weakly."""
        solved, weights = self.numbers.copy(), self.counted.ravel()
        if not free.any():
            return self.prior.copy()
        solved[~free] = self.prior[~free]
        size = _RANGE[free]
        ridge = np.eye(len(size)) * _WEIGHT
        bounds = ((LOW - self.prior)[free] / size, (HIGH - self.prior)[free] / size)
        rows = self.slopes.reshape(-1, len(NAMES))[:, free] * size
        target = self.misses.ravel() + rows @ ((self.numbers - self.prior)[free] / size)
        target = target - self.slopes.reshape(-1, len(NAMES))[:, ~free] @ (self.prior - self.numbers)[~free]
        counted = weights
        linear = np.repeat(self.bounds, weights.size // 2)
        for _ in range(_REWEIGHTED):
            root = np.sqrt(counted)
            left = np.concatenate([rows * root[:, None], ridge])
            right = np.concatenate([target * root, np.zeros(len(size))])
            change = scipy().optimize.lsq_linear(left, right, bounds).x
            off = np.abs(target - rows @ change)
            counted = weights / np.maximum(off / linear, 1.0)
        solved[free] = self.prior[free] + change * size
        return solved

    def held_out_error(self, free: Mask, metrics: slice = np.s_[:]) -> float:
        """Mean error of parts of the time, and of the load, with numbers from the others."""
        by = (self.held_out(free, by_load=load)[metrics] for load in (False, True))
        return sum(total(left, self.counted[metrics]) for left in by) / 2

    def shrunk(self, numbers: Floats, scatter: Floats) -> Floats:
        """Numbers without changes that are no more than scatter: of all that are of steps, by their effect on
        the mean of TPOT, and of the front end, by that on TTFT. Of larger ones `kept` is kept.

        Args:
            scatter: change of mean TTFT and TPOT between runs of one server.
        """
        moved = numbers - self.prior
        shrunk = self.prior.copy()
        for metric, own in ((1, OF_STEPS), (0, ~OF_STEPS)):
            relative = self.slopes[metric] @ np.where(own, moved, 0.0)
            counted = self.counted[metric] / self.counted[metric].sum()
            change = float((np.abs(relative) * counted).sum())
            shrunk[own] += kept(change, float(scatter[metric])) * moved[own]
        settled: Floats = np.where(np.abs(shrunk - self.prior) < SETTLED, self.prior, shrunk)
        return settled

    def drawn(self, free: Mask, scatter: Floats) -> Floats:
        """Numbers for resampled slices."""
        random = np.random.default_rng(0)
        slices = self.misses.shape[1]
        resampled = [self._of_slices(at) for at in random.integers(0, slices, (_DRAWS, slices))]
        return np.array([one.shrunk(one.solve(free), scatter) for one in resampled])

    def _of_slices(self, at: NDArray[np.intp]) -> Linearised:
        return replace(
            self,
            misses=self.misses[:, at],
            slopes=self.slopes[:, at],
            weights=self.weights[:, at],
            counted=self.counted[:, at],
        )

    def held_out(self, free: Mask, *, by_load: bool = False, scatter: Floats | None = None) -> Floats:
        """Errors on each part of the run with numbers from the others.

        Args:
            by_load: parts with as many requests in flight, rather than parts of the time.
            scatter: the numbers are shrunk; None = they are not.
        """
        left = np.zeros_like(self.misses)
        slices = self.misses.shape[1]
        part = np.arange(GROUPS) if by_load else np.arange(slices) * _PARTS // SLICES
        for number in range(int(part.max()) + 1):
            at = np.s_[:, :, part == number] if by_load else np.s_[:, part == number]
            counted = self.counted.copy()
            counted[at] = 0.0
            numbers = replace(self, counted=counted).solve(free)
            left[at] = self.left(numbers if scatter is None else self.shrunk(numbers, scatter), at)
        return left


def kept(change: float, scatter: float) -> float:
    """Share of a change that is kept, by firm shrinkage (Gao and Bruce, "WaveShrink with firm shrinkage",
    Statistica Sinica 1997): none up to the scatter, all from `_FIRM` times it on, and in between a line, so
    that a change that exceeds the scatter by little is kept by little."""
    if change <= scatter:
        return 0.0
    return min(_FIRM / (_FIRM - 1) * (1 - scatter / change), 1.0)


def calm(slopes: Floats, weights: Floats) -> Floats:
    """Weights in which TTFT counts where requests do not queue: others amplify any error of step times.

    Args:
        slopes: of the factor on step times.
    """
    quiet = np.maximum(np.abs(slopes[0]) / _AMPLIFIED, 1.0) ** -4
    counted: Floats = weights * np.stack([_PROMPTS * quiet, np.ones_like(quiet)])
    return counted


def total(misses: Floats, weights: Floats) -> float:
    """Weighted mean absolute logarithm of measured over predicted."""
    return float((np.abs(np.log1p(misses)) * weights).sum() / weights.sum())


def sizes(misses: Floats, weights: Floats) -> dict[str, float]:
    """Mean absolute error of the means of slices and groups, predicted over measured."""
    size = (np.abs(1 / (1 + misses) - 1) * weights).sum(axis=(1, 2))
    return {name: float(each) for name, each in zip(("TTFT", "TPOT"), size, strict=True)}
