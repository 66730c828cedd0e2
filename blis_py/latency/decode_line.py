"""The shape every model's pure decode step has: a constant plus the larger of two lines in Σ context."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

SCALAR_STEPS = 24
"""Runs up to this long are summed in plain Python; longer ones in numpy (where the two cost the same)."""


class DecodeLine(NamedTuple):
    """Price of a decode step of a fixed set of sequences that have S cached tokens in all.

    The step lasts `unit_ns * max(1, trunc(base + max(x0 + x1*S, y0 + y1*S))) + fixed_ns`.
    """

    base: float
    x0: float
    x1: float
    y0: float
    y1: float

    def at(self, kv_tokens: int) -> float:
        """Untruncated price at S = `kv_tokens`, in units."""
        base, x0, x1, y0, y1 = self
        x = x0 + x1 * kv_tokens
        y = y0 + y1 * kv_tokens
        return base + (x if x > y else y)


def run_ns(
    line: DecodeLine, kv_tokens: int, growth: int, steps: int, unit_ns: int, fixed_ns: int = 0
) -> Sequence[int]:
    """Cumulative end times of `steps` decode steps, S growing by `growth` tokens from step to step.

    Both paths do the same IEEE operations in the same order and truncate every step on its own, so
    they agree to the bit with each other and with single steps. No coefficient being negative, a
    step is never shorter than the first: if that lasts a unit, all do.
    """
    if steps > SCALAR_STEPS or line.at(kv_tokens) < 1.0 or not growth:
        return _vector(line, kv_tokens, growth, steps, unit_ns, fixed_ns)
    base, x0, x1, y0, y1 = line
    contexts = range(kv_tokens, kv_tokens + steps * growth, growth)
    if x0 == y0 and x1 == y1:
        units = [int(base + (x0 + x1 * s)) for s in contexts]
    else:
        units = [int(base + (x if (x := x0 + x1 * s) > (y := y0 + y1 * s) else y)) for s in contexts]
    return list(accumulate([unit * unit_ns + fixed_ns for unit in units]))


def _vector(
    line: DecodeLine, kv_tokens: int, growth: int, steps: int, unit_ns: int, fixed_ns: int
) -> Sequence[int]:
    s = np.arange(steps, dtype=np.float64)
    s *= growth
    s += kv_tokens
    price = np.maximum(line.x0 + line.x1 * s, line.y0 + line.y1 * s)
    price += line.base
    units = np.maximum(price.astype(np.int64), 1)
    units *= unit_ns
    units += fixed_ns
    ends: Sequence[int] = np.cumsum(units)  # type: ignore[assignment]
    return ends
