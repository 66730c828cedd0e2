"""Steps of the same kind that follow each other: how many, and when they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

LAST_NS: Final = (1 << 62) - 1
"""The end of the clock: no step ends later. Whatever begins before, and is no longer, ends within 64 bits."""
LONGEST_NS: Final = 4611686018427387904.0
"""2^62: no step is as long."""


def beyond_the_clock() -> OverflowError:
    return OverflowError("a step ends more than a century after the start")


class StepRun:
    """Consecutive steps, at least one; of one there is nothing more to know than its end.

    Raises:
        OverflowError: they end after the clock does.
    """

    def __init__(self, steps: int, end_ns: int) -> None:
        if end_ns > LAST_NS:
            raise beyond_the_clock()
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
        super().__init__(len(ends_ns), int(ends_ns[-1]))
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


def within_the_clock(price: Any, longest: float = LONGEST_NS, rising: bool = True) -> Any:
    """Prices of steps that follow each other, as far as they are below `longest`.

    Args:
        rising: none is less than the one before.

    Raises:
        OverflowError: not even the first one is.
    """
    if (price[-1] if rising else price.max()) < longest:
        return price
    steps = int((~(price < longest)).argmax())
    if not steps:
        raise beyond_the_clock()
    return price[:steps]


def run_of(ns: Ints, start_ns: int, until_ns: int, rising: bool = True) -> PricedRun:
    """Steps of these durations, as far as the first that ends at `until_ns` or later. The array is used up.

    Args:
        rising: none is shorter than the one before.

    Raises:
        OverflowError: it ends after the clock does.
    """
    if start_ns + float(ns[-1] if rising else ns.max()) * len(ns) >= LONGEST_NS:
        rough_ends = start_ns + np.add.accumulate(ns, dtype=np.float64)
        ns = ns[: int(rough_ends.searchsorted(LONGEST_NS)) + 1]
    ns[0] += start_ns
    ends = np.add.accumulate(ns)
    if until_ns <= ends[-1]:
        ends = ends[: int(ends.searchsorted(until_ns)) + 1]
    return PricedRun(ends)
