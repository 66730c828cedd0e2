"""Search for the cheapest passing candidate, on lines along which cost and capacity increase.

A line is a combination of all settings but the number of instances. Along it a bisection finds the least
number that holds. All lines are searched at once, a probe of each in a round, and a line ends as soon as
the rest of it costs more than a candidate that passes already. Where lines have a single size (layouts,
fleets of pools), nothing is taken to increase with cost: the cheapest lines are tried first, until one
passes. Probes depend on the outcomes alone, not on the executor or the number of concurrent runs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from blis_py.planning.goal import Judgement
from blis_py.planning.job import FINE

_TOGETHER = 8
"""Fewest lines with a single size tried in a round, independent of the number of workers."""
Probe = tuple[int, int]
"""A line and a size, by index."""
Evaluate = Callable[[Sequence[Probe], bool], Sequence[Judgement]]
"""Judge of probes; the flag allows an early verdict from a part of the arrivals."""


@dataclass(frozen=True, slots=True)
class SearchLine:
    """Cost of one more instance on the line: dollars per hour or, without prices, GPUs."""

    cost: float
    most: float = math.inf
    """The largest number of instances."""


class Search:
    """
    Args:
        lines: in order of preference among equals.
        sizes: numbers of instances, ascending.
        evaluate: judges candidates.

    Attributes:
        known: all judgements so far.
    """

    def __init__(self, lines: Sequence[SearchLine], sizes: Sequence[int], evaluate: Evaluate) -> None:
        self._lines, self._sizes, self._evaluate = [*lines], sizes, evaluate
        self.known: dict[Probe, Judgement] = {}
        self._of_line: list[dict[int, Judgement]] = [{} for _ in lines]
        """All judgements so far, by line, then by size."""

    def best(self, lines: Collection[int] | None = None) -> Probe | None:
        """The cheapest candidate to pass a whole run; among equals the one with the most slack.

        Args:
            lines: consider only these; None = all.
        """
        among = range(len(self._lines)) if lines is None else sorted(lines)
        while True:
            bound = self._bound(among)
            probes = [probe for line in among if (probe := self._next(line, bound)) is not None]
            if probes:
                self._judge(self._first(probes), may_stop=True)
                continue
            supposed = [p for p in self._cheapest(among) if self.known[p].early_stop == FINE]
            if not supposed:
                return min(self._cheapest(among), key=self._rank, default=None)
            self._judge(supposed, may_stop=False)

    def lead(self, lines: Collection[int]) -> None:
        """Search lines one after the other, each only below the cheapest candidate so far.

        It takes fewer probes than all lines at once, and more rounds; ties are left to `best`.
        """
        for line in sorted(lines):
            while (probe := self._next(line, self._bound(lines) * (1 - 1e-9))) is not None:
                self._judge([probe], may_stop=True)

    def passing(self) -> Probe | None:
        """The cheapest candidate that passes by what is known, or is presumed to."""
        return min(self._cheapest(range(len(self._lines))), key=self._rank, default=None)

    def add(self, line: SearchLine) -> int:
        """Add a line; return its index."""
        self._lines.append(line)
        self._of_line.append({})
        return len(self._lines) - 1

    def rejudge(self, probe: Probe, judgement: Judgement) -> None:
        """Replace the judgement of a candidate by that of a closer examination."""
        self.known[probe] = self._of_line[probe[0]][probe[1]] = judgement

    def least(self, line: int) -> int | None:
        """Index of the smallest size on a line that passes, or is presumed to."""
        return min((size for size, judgement in self._of_line[line].items() if judgement.holds), default=None)

    def most_failing(self, line: int) -> int | None:
        """Index of the largest size on a line that fails."""
        return max(
            (size for size, judgement in self._of_line[line].items() if not judgement.holds), default=None
        )

    def first_judged(self, line: int) -> Judgement:
        """The first judgement on a line."""
        return next(iter(self._of_line[line].values()))

    def settled(self, line: int) -> bool:
        """Whether the smallest passing size is known from a whole run."""
        least, failing = self.least(line), self.most_failing(line)
        if least is None or self.known[line, least].early_stop is not None:
            return False
        return least == (0 if failing is None else failing + 1)

    def cost(self, probe: Probe) -> float:
        return self._lines[probe[0]].cost * self._sizes[probe[1]]

    def whole(self, probes: Sequence[Probe]) -> None:
        """Judge probes by whole runs."""
        todo = [probe for probe in probes if probe not in self.known or self.known[probe].early_stop]
        self._judge(todo, may_stop=False)

    def _next(self, line: int, bound: float) -> Probe | None:
        """The middle of the undecided sizes on a line that cost at most `bound`; the largest of them where
        only other lines pass yet: if that fails, the line is out."""
        failing, least = self.most_failing(line), self.least(line)
        if failing is not None and self.known[line, failing].refused is not None:
            return None
        first = 0 if failing is None else failing + 1
        last = bisect_right(self._sizes, self._lines[line].most) - 1 if least is None else least - 1
        last = bisect_right(self._sizes, bound, first, last + 1, key=lambda n: self._lines[line].cost * n) - 1
        if last < first:
            return None
        return line, last if least is None and bound < math.inf else (first + last) // 2

    def _first(self, probes: Sequence[Probe]) -> Sequence[Probe]:
        """The probes of a round: all, or of lines with a single size the cheapest. With an eighth of those
        tried so far, rounds are few and few tries are wasted."""
        count = max(_TOGETHER, len(self.known) // 8)
        if len(self._sizes) > 1 or len(probes) <= count:
            return probes
        most = sorted(map(self.cost, probes))[count - 1]
        return [probe for probe in probes if self.cost(probe) <= most]

    def _bound(self, among: Collection[int]) -> float:
        """Cost of the cheapest candidate that passes, or is presumed to."""
        holding = ((line, least) for line in among if (least := self.least(line)) is not None)
        return min(map(self.cost, holding), default=float("inf"))

    def _cheapest(self, among: Collection[int]) -> list[Probe]:
        """Candidates that cost at most the bound."""
        bound = self._bound(among)
        holding = ((line, least) for line in among if (least := self.least(line)) is not None)
        return [probe for probe in holding if self.cost(probe) <= bound]

    def _rank(self, probe: Probe) -> tuple[float, float, int]:
        return self.cost(probe), -self.known[probe].slack, probe[0]

    def _judge(self, probes: Sequence[Probe], may_stop: bool) -> None:
        if not probes:
            return
        for (line, size), judgement in zip(probes, self._evaluate(probes, may_stop), strict=True):
            self.known[line, size] = self._of_line[line][size] = judgement
