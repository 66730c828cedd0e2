"""Runs of consecutive similar steps: their number and end times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blis_py.core.compiled_classes import mypyc_attr
from blis_py.core.features import StepFeatures

Ints = NDArray[np.int64]

LAST_NS: Final = (1 << 62) - 1
"""End of the clock: no step ends later. A step that begins before it, and is no longer than it, ends within
64 bits."""
LONGEST_NS: Final = 4611686018427387904.0
"""2^62: an upper bound of a step's length."""


def beyond_the_clock() -> OverflowError:
    return OverflowError("a step ends more than a century after the start")


@mypyc_attr(acyclic=True, free_list_len=1)
class StepRun:
    """Consecutive steps, at least one; a single step is described by its end.

    Raises:
        OverflowError: they end after the end of the clock.
    """

    def __init__(self, steps: int, end_ns: int) -> None:
        if end_ns > LAST_NS:
            raise beyond_the_clock()
        self.steps = steps
        self.end_ns = end_ns
        """End of the last step."""

    def until(self, time_ns: int) -> StepRun:
        """The run up to the first step that ends at `time_ns` or later."""
        return self

    def first(self, steps: int) -> StepRun:
        """The first steps of the run."""
        return self

    def then(self, end_ns: int) -> StepRun:
        """The run extended by one step that ends at this time."""
        return PricedRun(np.append(self.ends_ns(), end_ns))

    def ends_ns(self) -> Ints:
        """End of each step."""
        return np.array([self.end_ns], np.int64)


@mypyc_attr(acyclic=True)
class PricedRun(StepRun):
    """A run with known ends of all steps.

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


def within_the_clock(price: Any, longest: float = LONGEST_NS) -> Any:
    """Prices of consecutive steps, up to the first that is not below `longest`.

    Raises:
        OverflowError: the first price is not below it.
    """
    if price.max() < longest:
        return price
    steps = int((~(price < longest)).argmax())
    if not steps:
        raise beyond_the_clock()
    return price[:steps]


def run_of(ns: Ints, start_ns: int, until_ns: int) -> PricedRun:
    """Steps of these durations, up to the first that ends at `until_ns` or later. The array is modified.

    Raises:
        OverflowError: it ends after the end of the clock.
    """
    if start_ns + float(ns.max()) * len(ns) >= LONGEST_NS:
        rough_ends_ns = start_ns + np.add.accumulate(ns, dtype=np.float64)
        ns = ns[: int(rough_ends_ns.searchsorted(LONGEST_NS)) + 1]
    ns[0] += start_ns
    ends_ns = np.add.accumulate(ns)
    if until_ns <= ends_ns[-1]:
        ends_ns = ends_ns[: int(ends_ns.searchsorted(until_ns)) + 1]
    return PricedRun(ends_ns)


def run_of_few(prices: Sequence[float], fixed_ns: int, start_ns: int, until_ns: int) -> PricedRun:
    """Steps of these durations, rounded down, and a fixed one, up to the first that ends at `until_ns` or
    later. For a few of them this takes less time than `run_of`.

    Raises:
        OverflowError: the first price exceeds the range of the clock, or a step ends after it.
    """
    ends_ns: list[int] = []
    end_ns, until_ns = start_ns, min(until_ns, LAST_NS)
    for price in prices:
        if not price < LONGEST_NS:
            if ends_ns:
                break  # raises an error if reached
            raise beyond_the_clock()
        end_ns += max(int(price), 1) + fixed_ns
        ends_ns.append(end_ns)
        if end_ns >= until_ns:
            break
    return PricedRun(ends_ns)


def step_by_step(
    step_ns: Callable[[StepFeatures], int], features: StepFeatures, steps: int, start_ns: int, until_ns: int
) -> PricedRun:
    """Decode steps priced one after another, up to the first that ends at `until_ns` or later."""
    ends_ns, end_ns = [], start_ns
    for done in range(steps):
        end_ns += step_ns(features.after(done))
        ends_ns.append(end_ns)
        if end_ns >= until_ns:
            break
    return PricedRun(ends_ns)
