"""What chance does to counted answers."""

from __future__ import annotations

import math


def fewest_right(accuracy: float, problems: int) -> int:
    """Right answers that a model of this accuracy misses by chance only once in 10,000 (binomial)."""
    tail = 0.0
    for right in range(problems + 1):
        tail += math.comb(problems, right) * accuracy**right * (1 - accuracy) ** (problems - right)
        if tail > 1e-4:
            return right
    return problems
