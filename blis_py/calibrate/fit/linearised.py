"""Errors of simulated runs as linear functions of the numbers of a server, and the numbers that explain them.

Arrays are (TTFT and TPOT, slice of time, group); slopes have the numbers as a last axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from blis_py.calibrate.fit.server_runs import GROUPS, NAMES, SLICES, Floats

Mask = NDArray[np.bool_]

_RANGE = np.array([0.5, 2000.0, 100.0, 5.0])
"""Deviation from the preset that counts as much as an error of `_WEIGHT`."""
_WEIGHT = np.array([0.001, 0.001, 0.001, 0.005])
_LOW, _HIGH = np.array([0.05, 0.0, 0.0, 0.0]), np.array([20.0, 1e6, 1e5, 1e5])
_STAGES = (([0], 0.2, 0.006), ([1, 2], 0.4, 0.02))
"""Numbers added one after the other, and the least reduction of the two held-out errors of TPOT together that
each must bring: a share, and an absolute value."""
SETTLED = np.array([0.0025, 10.0, 0.5, 0.25])
"""Convergence threshold, and the least deviation from the preset."""
_OF_STEPS = np.array([True, True, True, False])
_AMPLIFIED = 1.2
"""Relative change of TTFT over that of step times above which requests queue."""
_BOUND, _REWEIGHTED = 0.3, 4
_PARTS, _DRAWS = 4, 200
FRONT_END = ~_OF_STEPS
"""The numbers that are fitted in any case."""


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
    scatter: float
    """Change of a mean latency below which it is no more than the scatter between runs of one server."""

    def left(self, solved: Floats, part: Any) -> Floats:
        """Errors that other numbers leave in a part of the arrays."""
        left: Floats = (1 + self.misses[part]) / (1 + self.slopes[part] @ (solved - self.numbers)) - 1
        return left

    def solve(self, free: Mask) -> Floats:
        """Numbers that explain the errors; only free ones change.

        Step times are explained by TPOT alone; the front end by what is left of TTFT. Requests that queue
        amplify any error of step times in their TTFT, so slices with a steep slope hardly count.
        """
        ttft, tpot = self.slopes
        solved = self._least_squares(self.numbers, self.misses[1], tpot, self.weights[1], free & _OF_STEPS)
        calm = np.maximum(np.abs(ttft[..., 0]) / _AMPLIFIED, 1.0) ** -4
        return self._least_squares(
            solved, self.left(solved, 0), ttft, self.weights[0] * calm, free & FRONT_END
        )

    def _least_squares(
        self, numbers: Floats, misses: Floats, slopes: Floats, weights: Floats, free: Mask
    ) -> Floats:
        """Robust least squares of one metric: errors beyond a bound count linearly."""
        solved = numbers.copy()
        if not free.any():
            return solved
        size, counted = _RANGE[free], weights.ravel()
        ridge = np.diag(_WEIGHT[free] / size)
        bounds = ((_LOW - numbers)[free] / size, (_HIGH - numbers)[free] / size)
        rows, target = slopes.reshape(-1, len(NAMES))[:, free], misses.ravel()
        for _ in range(_REWEIGHTED):
            root = np.sqrt(counted)
            left = np.concatenate([rows * root[:, None], ridge])
            right = np.concatenate([target * root, ((self.prior - numbers)[free]) * np.diag(ridge)])
            change = lsq_linear(left * size, right, bounds).x * size
            off = np.abs(target - rows @ change)
            counted = weights.ravel() / np.maximum(off / _BOUND, 1.0)
        solved[free] += change
        return np.clip(solved, _LOW, _HIGH)

    def worth_fitting(self, free: Mask) -> Mask:
        """Free numbers, and those that are worth fitting as well: the factor on step times, from TPOT; and a
        gap only where it improves the prediction of other parts of the run and of other loads further.

        Under a nearly constant load, one number explains as much as three, and is less wrong at other loads.
        """
        now = self._held_out_error(free)
        for stage, gain, least in _STAGES:
            more = [free | (np.arange(len(free)) == i) for i in stage if not free[i]]
            errors = [self._held_out_error(of) for of in more]
            if not errors or min(errors) > (1 - gain) * now - least:
                continue
            best = more[int(np.argmin(errors))]
            moved = self.solve(best) - self.prior
            if (np.abs(self.slopes[1] @ moved) * self.weights[1]).sum() < self.scatter:
                continue
            now, free = min(errors), best
        return free

    def _held_out_error(self, free: Mask) -> float:
        """Held-out error of TPOT, over parts of the time and of the load together."""
        by_time = sizes(self.held_out(free), self.weights)
        by_load = sizes(self.held_out(free, by_load=True), self.weights)
        return by_time["TPOT"] + by_load["TPOT"]

    def shrunk(self, numbers: Floats) -> Floats:
        """Numbers moved toward the preset, the more the less they change the means of TPOT and TTFT."""
        moved = numbers - self.prior
        shrunk = self.prior.copy()
        for metric, own in ((1, _OF_STEPS), (0, FRONT_END)):
            relative = self.slopes[metric] @ np.where(own, moved, 0.0)
            change = abs(float((relative * self.weights[metric]).sum()))
            kept = max(0.0, 1 - (self.scatter / change) ** 4) if change else 0.0
            shrunk[own] += kept * moved[own]
        settled: Floats = np.where(np.abs(shrunk - self.prior) < SETTLED, self.prior, shrunk)
        return settled

    def drawn(self, free: Mask) -> Floats:
        """Numbers for resampled slices."""
        random = np.random.default_rng(0)
        slices = self.misses.shape[1]
        resampled = [self._of_slices(at) for at in random.integers(0, slices, (_DRAWS, slices))]
        return np.array([one.shrunk(one.solve(free)) for one in resampled])

    def _of_slices(self, at: NDArray[np.intp]) -> Linearised:
        return replace(
            self, misses=self.misses[:, at], slopes=self.slopes[:, at], weights=self.weights[:, at]
        )

    def held_out(self, free: Mask, *, by_load: bool = False) -> Floats:
        """Errors on each part of the run with numbers from the others.

        Args:
            by_load: parts with as many requests in flight, rather than parts of the time.
        """
        left = np.zeros_like(self.misses)
        slices = self.misses.shape[1]
        part = np.arange(GROUPS) if by_load else np.arange(slices) * _PARTS // SLICES
        for number in range(int(part.max()) + 1):
            at = np.s_[:, :, part == number] if by_load else np.s_[:, part == number]
            kept = self.weights.copy()
            kept[at] = 0.0
            left[at] = self.left(replace(self, weights=kept).solve(free), at)
        return left


def sizes(misses: Floats, weights: Floats) -> dict[str, float]:
    """Mean absolute error of the means of slices and groups, predicted over measured."""
    size = (np.abs(1 / (1 + misses) - 1) * weights).sum(axis=(1, 2))
    return {name: float(each) for name, each in zip(("TTFT", "TPOT"), size, strict=True)}
