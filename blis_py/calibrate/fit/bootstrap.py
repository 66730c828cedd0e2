"""Uncertainty of the coefficients: the fit repeated on shapes drawn with replacement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from blis_py.calibrate.fit._solve import Solution, nonnegative
from blis_py.latency.fitted_profile import Prices

Array = NDArray[np.float64]


def draw_groups(groups: NDArray[np.int64], draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`[draws, groups]`: multiplicity of each group of rows in each draw."""
    count = int(groups.max()) + 1
    present = np.unique(groups)
    taken = np.zeros((draws, count), dtype=np.int64)
    for row in taken:
        np.add.at(row, rng.choice(present, len(present)), 1)
    return taken


def redraw(
    solution: Solution, groups: NDArray[np.int64], taken: NDArray[np.int64]
) -> list[tuple[float, ...]]:
    """Prices of each draw, from the linearised problem of the fit itself."""
    terms = solution.scaled.shape[1]
    grams = np.zeros((taken.shape[1], terms, terms))
    moments = np.zeros((taken.shape[1], terms))
    np.add.at(grams, groups, solution.scaled[:, :, None] * solution.scaled[:, None, :])
    np.add.at(moments, groups, solution.scaled * solution.target[:, None])
    return [
        tuple(nonnegative(np.tensordot(row, grams, 1), np.tensordot(row, moments, 1)).tolist())
        for row in taken.astype(np.float64)
    ]


def interval(values: Sequence[float] | Array, level: float = 0.9) -> tuple[float, float]:
    """The central `level` interval of the values."""
    low, high = np.quantile(np.asarray(values, float), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def price_intervals(
    prices: Prices, draws: Sequence[Sequence[float]], level: float = 0.9
) -> dict[str, tuple[float, float]]:
    """Each coefficient's interval."""
    table = np.array(draws).reshape(len(draws), len(prices))
    return {name: interval(table[:, i], level) for i, name in enumerate(prices)} if len(draws) else {}
