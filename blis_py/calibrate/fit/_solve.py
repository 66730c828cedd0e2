"""Non-negative least squares on relative errors.

The objective is the mean square of log(measured / predicted): relative, so that a short step counts as much
as a long one, and symmetric, where a plain relative loss would favour underprediction. It is solved by a few
rounds of weighted non-negative least squares on a linearised log. Logs are clipped at a factor of three: an
interruption carries no information about the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blis_py.calibrate.fit.basis import Rows, design
from blis_py.files.packages import scipy

Array = NDArray[np.float64]

_ROUNDS = 6
_CUT = float(np.log(3.0))
_RIDGE = 1e-9
"""Relative to the scaled Gram matrix: keeps it invertible if two terms coincide, without other effects."""
_KNEES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
_WORTH_IT = 0.995
"""A knee is set if it lowers the loss to at most this share."""


@dataclass(frozen=True)
class Solution:
    """Prices in ns, and the weighted problem of the last round, from which a bootstrap draws parts."""

    names: tuple[str, ...]
    prices: Array
    scaled: Array
    """`[rows, terms]`: terms over the predicted time."""
    target: Array
    """`[rows]`: what `scaled @ prices` should be, around 1."""
    loss: float
    """Mean square of the clipped logs."""

    def as_dict(self) -> dict[str, float]:
        return {name: float(price) for name, price in zip(self.names, self.prices, strict=True)}


def solve(a: Array, y: Array, names: Sequence[str]) -> Solution:
    """Prices of the terms `a` (`[rows, terms]`) for the measured times `y` in ns, all positive."""
    scale, target = 1.0 / y, np.ones_like(y)
    prices = np.zeros(a.shape[1])
    for _ in range(_ROUNDS):
        scaled = a * scale[:, None]
        prices = nonnegative(scaled.T @ scaled, scaled.T @ target)
        predicted = np.maximum(a @ prices, y * 1e-3)
        logs = np.clip(np.log(y / predicted), -_CUT, _CUT)
        scale, target = 1.0 / predicted, 1.0 + logs
    return Solution(tuple(names), prices, a * scale[:, None], target, float(np.mean(logs**2)))


def solve_within(a: Array, y: Array, whole: Array, names: Sequence[str]) -> Solution:
    """The same for times that are a part of a whole each: errors count relative to the whole."""
    scaled, target = a / whole[:, None], y / whole
    prices = nonnegative(scaled.T @ scaled, scaled.T @ target)
    return Solution(tuple(names), prices, scaled, target, float(np.mean((target - scaled @ prices) ** 2)))


def nonnegative(gram: Array, moment: Array) -> Array:
    """x >= 0 that minimises x'Gx/2 - m'x."""
    size = np.sqrt(np.diag(gram))
    used = size > 0
    x = np.zeros(len(moment))
    if not used.any():
        return x
    part, scale = gram[np.ix_(used, used)], size[used]
    part = part / np.outer(scale, scale)
    lower = np.linalg.cholesky(part + _RIDGE * np.eye(len(scale)))
    right = scipy().linalg.solve_triangular(lower, moment[used] / scale, lower=True)
    x[used] = scipy().optimize.nnls(lower.T, right)[0] / scale
    return x


def search(rows: Rows, names: Sequence[str]) -> Solution:
    """The best solution over knees; the best knee is set in `rows.point`."""
    point = rows.point
    most = float(np.max(point.tokens))
    point.knee = 0
    plain = [name for name in names if name != "tokens_beyond_knee"]
    best = solve(design(rows, plain), rows.gpu_ns, plain)
    knee_index = 0
    for knee in (knee for knee in _KNEES if knee < most and "tokens_beyond_knee" in names):
        point.knee = knee
        tried = solve(design(rows, names), rows.gpu_ns, names)
        if tried.loss < _WORTH_IT * best.loss and tried.loss < best.loss:
            best, knee_index = tried, knee
    point.knee = knee_index
    return best
