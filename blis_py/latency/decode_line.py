"""The shape every model's pure decode step has: a constant plus the larger of two lines in Σ context."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

SCALAR_STEPS = 14 if __file__.endswith(".py") else 32
"""Runs up to this long are summed one by one, longer ones in numpy; about here the two cost the same, as
Python and as native code."""

_cell = lru_cache(maxsize=None, typed=True)(np.array)
"""A number as an array, which numpy adds or multiplies in half the time that a Python number takes."""


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
    line: DecodeLine,
    kv_tokens: int,
    growth: int,
    steps: int,
    start_ns: int,
    until_ns: int,
    unit_ns: int,
    fixed_ns: int = 0,
) -> Sequence[int]:
    """End times of up to `steps` decode steps, S growing by `growth` tokens from step to step.

    See `LatencyModel.decode_run_ns`. Both paths do the same IEEE operations in the same order and truncate
    every step on its own, so they agree to the bit with each other and with single steps.
    """
    base, x0, x1, y0, y1 = line
    x, y = x0 + x1 * kv_tokens, y0 + y1 * kv_tokens  # `DecodeLine.at`, without the call
    first_ns = (int(base + (x if x > y else y)) or 1) * unit_ns + fixed_ns
    # Coefficients are not negative: no later step is shorter, so this many are enough.
    enough = (until_ns - start_ns - 1) // first_ns + 1
    if enough < steps:
        steps = enough
    if steps <= 1:
        return [start_ns + first_ns]
    if steps > SCALAR_STEPS or base + x0 < 1:
        return _vector(line, kv_tokens, growth, steps, start_ns, unit_ns, fixed_ns)
    first, end = kv_tokens + growth, kv_tokens + steps * growth
    if x0 == y0 and x1 == y1:
        ns = [int(base + (x0 + x1 * s)) * unit_ns + fixed_ns for s in range(first, end, growth)]
    else:
        ns = [
            int(base + (x if (x := x0 + x1 * s) > (y := y0 + y1 * s) else y)) * unit_ns + fixed_ns
            for s in range(first, end, growth)
        ]
    return list(accumulate(ns, initial=start_ns + first_ns))


def _vector(
    line: DecodeLine, kv_tokens: int, growth: int, steps: int, start_ns: int, unit_ns: int, fixed_ns: int
) -> Sequence[int]:
    base, x0, x1, y0, y1 = line
    s = np.arange(kv_tokens, kv_tokens + steps * growth, growth, float)
    price = s * _cell(x1)
    price += _cell(x0)
    if x0 != y0 or x1 != y1:
        s *= _cell(y1)
        s += _cell(y0)
        np.maximum(price, s, price)
    price += _cell(base)
    ns = price.astype(np.int64)
    if base + x0 < 1:
        ns = np.maximum(ns, 1)
    if unit_ns != 1:
        ns *= _cell(unit_ns)
    if fixed_ns:
        ns += _cell(fixed_ns)
    ns[0] += start_ns
    ends: Sequence[int] = np.add.accumulate(ns)  # type: ignore[assignment]
    return ends
