"""Steps of the same kind that follow each other: how many, and when they end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class StepRun:
    """Consecutive steps, at least one; of one there is nothing more to know than its end."""

    def __init__(self, steps: int, end_ns: int) -> None:
        self.steps = steps
        self.end_ns = end_ns
        """When the last one ends."""

    def until(self, time_ns: int) -> StepRun:
        """The run as far as the first step that ends at `time_ns` or later."""
        return self

    def first(self, steps: int) -> StepRun:
        """The first so many steps of it."""
        return self

    def then(self, end_ns: int) -> StepRun:
        """The run with one more step, which ends at this time."""
        return PricedRun(np.append(self.ends_ns(), end_ns))

    def ends_ns(self) -> Ints:
        """End of each step."""
        return np.array([self.end_ns], np.int64)


class PricedRun(StepRun):
    """A run of which the end of every step has been worked out.

    Args:
        ends_ns: strictly increasing.
    """

    def __init__(self, ends_ns: Sequence[int] | Ints) -> None:
        self.steps = len(ends_ns)
        self.end_ns = int(ends_ns[-1])
        self._ends_ns = ends_ns if isinstance(ends_ns, np.ndarray) else np.array(ends_ns, np.int64)

    def until(self, time_ns: int) -> StepRun:
        if time_ns > self.end_ns:
            return self
        steps = int(self._ends_ns.searchsorted(time_ns)) + 1
        return self.first(steps)

    def first(self, steps: int) -> StepRun:
        return self if steps == self.steps else PricedRun(self._ends_ns[:steps])

    def ends_ns(self) -> Ints:
        return self._ends_ns
