"""What chance does to counted answers."""

from __future__ import annotations

import math


def fewest_right(accuracy: float, problems: int, once_in: float = 1e4) -> int:
    """Right answers that a model of this accuracy misses by chance only once in so many trials (binomial)."""
    tail = 0.0
    for right in range(problems + 1):
        tail += math.comb(problems, right) * accuracy**right * (1 - accuracy) ** (problems - right)
        if tail > 1 / once_in:
            return right
    return problems
