"""The price of a pure decode step in most models: a constant plus the maximum of two lines in Σ context."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_py.core.compiled_classes import mypyc_attr
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
"""Runs up to this length are summed step by step, longer ones in numpy. At about this length the two cost the
same in Python; as native code a step costs less than numpy's share of it at any length."""


_cell = lru_cache(maxsize=None, typed=True)(np.array)
"""A number as an array, which numpy adds or multiplies twice as fast as a Python number."""


class DecodeLine(NamedTuple):
    """Price of a decode step of a fixed set of sequences with S cached tokens in total.

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


def line_ns(line: DecodeLine, kv_tokens: int) -> int:
    """Duration of the step with S = `kv_tokens`; in the operations of `run_along`."""
    base, x0, x1, y0, y1, unit_ns, fixed_ns = line
    x, y = x0 + x1 * kv_tokens, y0 + y1 * kv_tokens
    return (int(base + (x if x > y else y)) or 1) * unit_ns + fixed_ns


@mypyc_attr(acyclic=True, free_list_len=1)
class LineRun(StepRun):
    """A run along a line. Only its end is computed; see `PackedRuns`."""

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
        """Extend the run by a step along the same line."""
        return LineRun(self.line, self.kv_tokens, self.growth, self.start_ns, self.steps + 1, end_ns)

    def ends_ns(self) -> Ints:
        return PackedRuns([self]).ends_ns()

    def list_ends(self, ends: list[int]) -> None:
        """Append the end of each step, in the operations of `run_along`."""
        base, x0, x1, y0, y1, unit_ns, fixed_ns = self.line
        s, further = float(self.kv_tokens), float(self.growth)
        unit: i64 = unit_ns
        fixed: i64 = fixed_ns
        end: i64 = self.start_ns
        left: i64 = self.steps
        while left > 0:
            x, y = x0 + x1 * s, y0 + y1 * s
            units: i64 = int(base + (x if x > y else y))
            if units == 0:
                units = 1
            end += units * unit + fixed
            ends.append(end)
            s += further
            left -= 1


def run_along(
    line: DecodeLine, kv_tokens: int, growth: int, steps: int, start_ns: int, until_ns: int
) -> StepRun:
    """Up to `steps` decode steps, S growing by `growth` tokens from step to step.

    See `LatencyModel.decode_run`. All paths perform the same IEEE operations in the same order and truncate
    every step on its own, so they agree to the bit with each other and with single steps.

    Raises:
        OverflowError: the first step exceeds the range of the clock, or a step ends after it.
    """
    base, x0, x1, y0, y1, unit_ns, fixed_ns = line
    if steps > SCALAR_STEPS:
        x, y = x0 + x1 * kv_tokens, y0 + y1 * kv_tokens
        first_ns = (int(base + (x if x > y else y)) or 1) * unit_ns + fixed_ns
        # Coefficients are non-negative: no later step is shorter, so this many suffice.
        enough = (until_ns - start_ns - 1) // first_ns + 1
        if enough > SCALAR_STEPS:
            steps = enough if enough < steps else steps
            return _in_numpy(line, kv_tokens, growth, steps, start_ns, until_ns)
    s, further = float(kv_tokens), float(growth)
    longest = LONGEST_NS / unit_ns
    unit: i64 = unit_ns
    fixed: i64 = fixed_ns
    until: i64 = until_ns if until_ns < LAST_NS else LAST_NS  # before 64-bit sums overflow
    end: i64 = start_ns
    most: i64 = steps
    done: i64 = 0
    while done < most:
        x, y = x0 + x1 * s, y0 + y1 * s
        price = base + (x if x > y else y)
        if not price < longest:
            if done:
                break  # raises an error if reached
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
"""A single step of which only the end is known: it "begins" there."""


PACKED_BYTES = 48
"""Size of one run in `PackedRuns`."""


class PackedRuns:
    """Runs along lines, and single steps, as numbers from which the end of each step can be computed."""

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
        """End of each step of each run, one run after the other, vectorised."""
        steps, kv_tokens, growth, start_ns, end_ns, places = self._facts.T
        base, x0, x1, y0, y1, unit_ns, fixed_ns = np.array(self._lines).T[:, places]
        firsts = steps.cumsum() - steps

        def each(values: Any) -> Any:
            """Expand values per run to values per step."""
            return values[0] if (values == values[0]).all() else values.repeat(steps)

        def summed(terms: Any, begin: Ints, end: Ints) -> Any:
            """Cumulative sums; those of a run start at its `begin` and reach its `end`."""
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
