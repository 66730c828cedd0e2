"""The correction table: residuals of the plane over (tokens, decode KV), point by point.

Ratios are found by ridge regression of the log residuals, each step weighing on the four points around it,
and limited to within `LIMIT` of 1. `latency.fitted_surface` makes the result monotone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blis_py.calibrate.fit.basis import Rows
from blis_py.latency.fitted_profile import Correction, Prices
from blis_py.latency.fitted_surface import FittedSurface
from blis_py.latency.fitted_terms import SURFACE, TERMS

Array = NDArray[np.float64]

LIMIT = 0.15
_RIDGE = 2.0
"""Number of agreeing steps before a point follows them rather than staying at 1."""
_TOKEN_POINTS, _KV_POINTS = 12, 6


def gpu_ns(rows: Rows, prices: Prices, correction: Correction | None) -> Array:
    """Predicted GPU time of every row."""
    surface = FittedSurface(prices, rows.point.knee, correction)
    return surface_ns(surface, rows.point.tokens, rows.point.decode_kv_tokens) + _rest(rows, prices)


def surface_ns(surface: FittedSurface, tokens: Array, kv_tokens: Array) -> Array:
    """Values of a surface at many points."""
    ns = np.zeros(len(tokens))
    for count in np.unique(tokens):
        rows = tokens == count
        curve = surface.curve(int(count))
        at, start, slope = (np.array(part) for part in (curve.at, curve.ns, curve.slopes))
        i = np.searchsorted(at, kv_tokens[rows], side="right") - 1
        ns[rows] = start[i] + slope[i] * (kv_tokens[rows] - at[i])
    return ns


def _rest(rows: Rows, prices: Prices) -> Array:
    others = [price * TERMS[name](rows.point) for name, price in prices.items() if name not in SURFACE]
    total: Array = np.zeros(len(rows)) + sum(others)
    return total


def correct(rows: Rows, prices: Prices) -> Correction:
    """The table that minimises the error of predicted GPU times."""
    tokens, kv = rows.point.tokens, rows.point.decode_kv_tokens
    at = _points(tokens, _TOKEN_POINTS, rows.point.knee)
    over = np.union1d([0.0], _points(kv[kv > 0], _KV_POINTS, 0)) if np.any(kv > 0) else np.array([0.0])
    plane = surface_ns(FittedSurface(prices, rows.point.knee, None), tokens, kv)
    predicted = np.maximum(plane + _rest(rows, prices), 1.0)
    logs = np.clip(np.log(rows.gpu_ns / predicted), -0.5, 0.5)
    weights = _weights(at, tokens)[:, :, None] * _weights(over, kv)[:, None, :]
    a = weights.reshape(len(rows), -1) * (plane / predicted)[:, None]
    gram = a.T @ a + _RIDGE * np.eye(a.shape[1])
    ratio = 1.0 + np.clip(np.linalg.solve(gram, a.T @ logs), -LIMIT, LIMIT)
    table = ratio.reshape(len(at), len(over))
    return Correction(
        tuple(at.tolist()), tuple(over.tolist()), tuple(tuple(map(float, row)) for row in table)
    )


def _points(values: Array, count: int, knee: int) -> Array:
    """Points of an axis where the measured values are, including the knee."""
    points = np.unique(np.round(np.quantile(values, np.linspace(0, 1, count))))
    inside = points[0] < knee < points[-1]
    return np.union1d(points, [float(knee)]) if inside else points


def _weights(at: Array, values: Array) -> Array:
    """`[values, points]`: linear interpolation as a matrix; constant beyond the ends."""
    weights = np.zeros((len(values), len(at)))
    if len(at) == 1:
        weights[:, 0] = 1.0
        return weights
    inside = np.clip(values, at[0], at[-1])
    i = np.minimum(np.searchsorted(at, inside, side="right") - 1, len(at) - 2)
    share = (inside - at[i]) / (at[i + 1] - at[i])
    rows = np.arange(len(values))
    weights[rows, i], weights[rows, i + 1] = 1 - share, share
    return weights
