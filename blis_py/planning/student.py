"""Quantiles of Student's distribution."""

from __future__ import annotations

import math
from functools import cache

_HALVINGS = 60


@cache
def two_sided(confidence: float, freedom: int) -> float:
    """The t within whose range ±t a share `confidence` of the distribution lies.

    Args:
        freedom: degrees of freedom, at least 1.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(theta: float, freedom: int) -> float:
    """Share of the distribution within ±√freedom·tan(theta): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    odd = freedom % 2
    term, total = (math.cos(theta) if odd else 1.0), 0.0
    for power in range(2 + odd, freedom + 1, 2):
        total += term
        term *= (power - 1) / power * math.cos(theta) ** 2
    share = math.sin(theta) * total
    return 2 / math.pi * (theta + share) if odd else share
