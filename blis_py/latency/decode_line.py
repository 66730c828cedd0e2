"""The shape most models' pure decode step has: a constant plus the larger of two lines in Σ context."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_py.latency.step_run import (
    LAST_NS,
    LONGEST_NS,
    Ints,
    PricedRun,
    StepRun,
    beyond_the_clock,
    run_of,
    within_the_clock,
)

if TYPE_CHECKING:
    from mypy_extensions import i64

SCALAR_STEPS = 10 if __file__.endswith(".py") else 1 << 60
"""Runs up to this long are summed step by step, longer ones in numpy. About here the two cost the same in
Python; as native code a step costs less than numpy's share of it, however many there are."""


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
    unit_ns: int = 1
    fixed_ns: int = 0

    def at(self, kv_tokens: int) -> float:
        """Untruncated price at S = `kv_tokens`, in units."""
        x = self.x0 + self.x1 * kv_tokens
        y = self.y0 + self.y1 * kv_tokens
        return self.base + (x if x > y else y)


class LineRun(StepRun):
    """A run along a line. Only its end has been worked out; see `PackedRuns`."""

    def __init__(
        self, line: DecodeLine, kv_tokens: int, growth: int, start_ns: int, steps: int, end_ns: int
    ) -> None:
        super().__init__(steps, end_ns)
        self.line = line
        self.kv_tokens = kv_tokens
        self.growth = growth
        self.start_ns = start_ns

    def until(self, time_ns: int) -> StepRun:
        if time_ns > self.end_ns:
            return self
        return run_along(self.line, self.kv_tokens, self.growth, self.steps, self.start_ns, time_ns)

    def first(self, steps: int) -> StepRun:
        if steps == self.steps:
            return self
        return run_along(self.line, self.kv_tokens, self.growth, steps, self.start_ns, LAST_NS)

    def then(self, end_ns: int) -> StepRun:
        """By a step along the same line."""
        return LineRun(self.line, self.kv_tokens, self.growth, self.start_ns, self.steps + 1, end_ns)

    def ends_ns(self) -> Ints:
        return PackedRuns([self]).ends_ns()


def run_along(
    line: DecodeLine, kv_tokens: int, growth: int, steps: int, start_ns: int, until_ns: int
) -> StepRun:
    """Up to `steps` decode steps, S growing by `growth` tokens from step to step.

    See `LatencyModel.decode_run`. All paths do the same IEEE operations in the same order and truncate
    every step on its own, so they agree to the bit with each other and with single steps.

    Raises:
        OverflowError: the first step is longer than the clock can tell, or one ends after it does.
    """
    base, x0, x1, y0, y1, unit_ns, fixed_ns = line
    if steps > SCALAR_STEPS:
        x, y = x0 + x1 * kv_tokens, y0 + y1 * kv_tokens
        first_ns = (int(base + (x if x > y else y)) or 1) * unit_ns + fixed_ns
        # Coefficients are not negative: no later step is shorter, so this many are enough.
        enough = (until_ns - start_ns - 1) // first_ns + 1
        if enough > SCALAR_STEPS:
            steps = enough if enough < steps else steps
            return _in_numpy(line, kv_tokens, growth, steps, start_ns, until_ns)
    s, further = float(kv_tokens), float(growth)
    longest = LONGEST_NS / unit_ns
    unit: i64 = unit_ns
    fixed: i64 = fixed_ns
    until: i64 = until_ns if until_ns < LAST_NS else LAST_NS  # where no sum of 64 bits has begun anew
    end: i64 = start_ns
    most: i64 = steps
    done: i64 = 0
    while done < most:
        x, y = x0 + x1 * s, y0 + y1 * s
        price = base + (x if x > y else y)
        if not price < longest:
            if done:
                break  # whoever gets there is told
            raise beyond_the_clock()
        units: i64 = int(price)
        if units == 0:
            units = 1
        end += units * unit + fixed
        done += 1
        if end >= until:
            break
        s += further
    return LineRun(line, kv_tokens, growth, start_ns, done, end)


_AT_AN_END = DecodeLine(0.0, 0.0, 0.0, 0.0, 0.0, unit_ns=0)
"""Of a single step of which only the end is known: it "begins" there."""


PACKED_BYTES = 48
"""Of one run in `PackedRuns`."""


class PackedRuns:
    """Runs along lines, and single steps, as numbers; the end of each of their steps can be worked out."""

    def __init__(self, runs: Sequence[StepRun]) -> None:
        lines: dict[int, DecodeLine] = {}
        place_of: dict[int, int] = {}
        facts: list[int] = []
        for run in runs:
            if isinstance(run, LineRun):
                line, start_ns, end_ns = run.line, run.start_ns, run.end_ns
                kv_tokens, growth = run.kv_tokens, run.growth
            else:
                line, start_ns, end_ns = _AT_AN_END, run.end_ns, run.end_ns
                kv_tokens = growth = 0
            name = id(line)
            if name not in lines:
                lines[name], place_of[name] = line, len(lines)
            facts += (run.steps, kv_tokens, growth, start_ns, end_ns, place_of[name])
        self._lines = list(lines.values())
        self._facts = np.fromiter(facts, np.int64, len(facts)).reshape(-1, 6)

    def ends_ns(self) -> Ints:
        """End of each step of each of the runs, one run after the other: many of them at a time."""
        steps, kv_tokens, growth, start_ns, end_ns, places = self._facts.T
        base, x0, x1, y0, y1, unit_ns, fixed_ns = np.array(self._lines).T[:, places]
        firsts = steps.cumsum() - steps

        def each(values: Any) -> Any:
            """Of each run -> of each step."""
            return values[0] if (values == values[0]).all() else values.repeat(steps)

        def summed(terms: Any, begin: Ints, end: Ints) -> Any:
            """Running sums; those of a run start from its `begin` and come to its `end`."""
            terms[firsts] += begin
            terms[firsts[1:]] -= end[:-1]
            return terms.cumsum()

        further = growth.astype(float).repeat(steps)
        further[firsts] = 0
        s = summed(further, kv_tokens, kv_tokens + growth * (steps - 1))
        price = s * each(x1)
        price += each(x0)
        if (x0 != y0).any() or (x1 != y1).any():
            np.maximum(price, s * each(y1) + each(y0), out=price)
        price += each(base)
        ns = np.maximum(price.astype(np.int64), 1)
        ns *= each(unit_ns.astype(np.int64))
        ns += each(fixed_ns.astype(np.int64))
        ends: Ints = summed(ns, start_ns, end_ns)
        return ends


def _in_numpy(
    line: DecodeLine, kv_tokens: int, growth: int, steps: int, start_ns: int, until_ns: int
) -> PricedRun:
    base, x0, x1, y0, y1, unit_ns, fixed_ns = line
    s = np.arange(kv_tokens, kv_tokens + steps * growth, growth, dtype=float)
    price = s * _cell(x1)
    price += _cell(x0)
    if x0 != y0 or x1 != y1:
        s *= _cell(y1)
        s += _cell(y0)
        np.maximum(price, s, price)
    price += _cell(base)
    ns = within_the_clock(price, LONGEST_NS / unit_ns).astype(np.int64)
    if base + x0 < 1:
        ns = np.maximum(ns, 1)
    if unit_ns != 1:
        ns *= _cell(unit_ns)
    if fixed_ns:
        ns += _cell(fixed_ns)
    return run_of(ns, start_ns, until_ns)
