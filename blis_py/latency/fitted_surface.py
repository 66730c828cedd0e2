"""Price surface over tokens and decode KV: a plane with a kink, multiplied by a correction table.

    plane(t, s) = step + tokens*t + tokens_beyond_knee*max(0, t - knee) + decode_kv_tokens*s

Without a table the plane is the price. With one, the plane's values at the table's points are multiplied by
its ratios, made monotone, and interpolated bilinearly; beyond the table the plane's own slopes apply. So the
surface never falls in either direction, for any table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blis_py.latency.fitted_profile import Correction, Prices

Array = NDArray[np.float64]


class SurfaceCurve:
    """The surface at one number of tokens: piecewise linear in decode KV tokens."""

    __slots__ = ("at", "ns", "slopes")

    def __init__(self, at: list[float], ns: list[float], slopes: list[float]) -> None:
        self.at, self.ns, self.slopes = at, ns, slopes


class FittedSurface:
    """See the module. Curves are cached: a step's price is one lookup and one line."""

    def __init__(self, prices: Prices, knee: int, correction: Correction | None) -> None:
        self._step = prices.get("step", 0.0)
        self._token = prices.get("tokens", 0.0)
        self._beyond = prices.get("tokens_beyond_knee", 0.0)
        self._kv = prices.get("decode_kv_tokens", 0.0)
        self._knee = knee
        self._table: tuple[list[float], list[float], list[list[float]]] | None = None
        if correction is not None:
            at, kv = np.array(correction.tokens), np.array(correction.kv_tokens)
            plane = self._tokens_ns(at)[:, None] + self._kv * kv
            table = monotone(plane * np.array(correction.ratio))
            self._table = (at.tolist(), kv.tolist(), table.tolist())

    def _tokens_ns(self, tokens: Array) -> Array:
        ns: Array = self._step + self._token * tokens + self._beyond * np.maximum(0.0, tokens - self._knee)
        return ns

    def _plane(self, tokens: float) -> float:
        return self._step + self._token * tokens + self._beyond * max(0.0, tokens - self._knee)

    def curve(self, tokens: float) -> SurfaceCurve:
        """The surface over decode KV at a number of tokens."""
        if self._table is None:
            return SurfaceCurve([0.0], [self._plane(tokens)], [self._kv])
        at, kv, table = self._table
        inside = min(max(tokens, at[0]), at[-1])
        i = min(int(np.searchsorted(at, inside, side="right")) - 1, len(at) - 2) if len(at) > 1 else 0
        rows = table[i], table[min(i + 1, len(at) - 1)]
        weight = (inside - at[i]) / (at[i + 1] - at[i]) if len(at) > 1 else 0.0
        further = self._plane(tokens) - self._plane(inside) if tokens > inside else 0.0
        ns = [low + weight * (high - low) + further for low, high in zip(*rows, strict=True)]
        slopes = [(ns[k + 1] - ns[k]) / (kv[k + 1] - kv[k]) for k in range(len(kv) - 1)]
        return SurfaceCurve(list(kv), ns, [*slopes, self._kv])


def monotone(table: Array) -> Array:
    """A nearby monotone table, non-decreasing along both axes: the mean of the least one above it and the
    largest one below it."""
    above = np.maximum.accumulate(np.maximum.accumulate(table, axis=0), axis=1)
    turned = table[::-1, ::-1]
    below = np.minimum.accumulate(np.minimum.accumulate(turned, axis=0), axis=1)[::-1, ::-1]
    middle: Array = (above + below) / 2
    return middle
