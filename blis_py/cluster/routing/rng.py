"""Random choices between instances, drawn in batches."""

from __future__ import annotations

import numpy as np

_AT_ONCE = 1024


class Rng:
    """A stream of random choices."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self._drawn: list[float] = []

    def below(self, count: int) -> int:
        """A uniformly distributed integer from 0 to `count` - 1."""
        if not self._drawn:
            self._drawn = self.rng.random(_AT_ONCE).tolist()
        return int(self._drawn.pop() * count)
