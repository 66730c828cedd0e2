"""The search finds what looking at everything would find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_plans import Known

from blis_py.planning.goal import Judgement, Requirement
from blis_py.planning.job import FINE, HOPELESS
from blis_py.planning.search import Probe, Search, SearchLine

SIZES = tuple(range(1, 13))


class World:
    """Lines that hold from some size on, with a slack that grows along them."""

    def __init__(self, least: Sequence[int | None], costs: Sequence[int], hints: Sequence[int]) -> None:
        self.least, self.costs, self.hints = least, costs, hints
        self.probed: list[tuple[Probe, bool]] = []

    def judge(self, probe: Probe) -> Judgement:
        line, size = probe
        least = self.least[line]
        if least is None:
            return Judgement(False, refused="does not fit")
        slack = (SIZES[size] - least) / 20 + (line % 3) / 100
        return Judgement(SIZES[size] >= least, (Requirement("x", 1.0, 1 - slack, "ms", slack),))

    def evaluate(self, probes: Sequence[Probe], may_stop: bool) -> list[Judgement]:
        self.probed += [(probe, may_stop) for probe in probes]
        return [self._hint(probe) if may_stop else self.judge(probe) for probe in probes]

    def _hint(self, probe: Probe) -> Judgement:
        """Now and then what the first part says: never wrongly that all is lost, sometimes wrongly that
        all is well."""
        whole = self.judge(probe)
        hint = self.hints[(7 * probe[0] + probe[1]) % len(self.hints)]
        if whole.refused is not None or hint == 0:
            return whole
        if not whole.holds and hint == 1:
            return Judgement(False, early_stop=HOPELESS)
        return Judgement(True, early_stop=FINE) if whole.holds or hint == 2 else whole

    def best(self) -> Probe | None:
        """By looking at everything."""
        holding = [
            ((self.costs[line] * SIZES[size], -self.judge((line, size)).slack, line), (line, size))
            for line in range(len(self.least))
            for size in range(len(SIZES))
            if self.judge((line, size)).holds
        ]
        return min(holding)[1] if holding else None


@st.composite
def worlds(draw: st.DrawFn) -> World:
    count = draw(st.integers(1, 7))
    least = st.one_of(st.none(), st.integers(1, 15))
    return World(
        draw(st.lists(least, min_size=count, max_size=count)),
        draw(st.lists(st.integers(1, 6), min_size=count, max_size=count)),
        draw(st.lists(st.integers(0, 2), min_size=1, max_size=9)),
    )


def search_of(world: World) -> Search:
    return Search([SearchLine(cost) for cost in world.costs], SIZES, world.evaluate)


@pytest.mark.slow
@given(worlds())
def test_it_finds_what_looking_at_everything_finds(world: World) -> None:
    assert search_of(world).best() == world.best()


@given(worlds())
def test_what_it_finds_was_judged_by_a_whole_run(world: World) -> None:
    search = search_of(world)
    found = search.best()
    assert found is None or search.known[found].early_stop is None


@given(worlds())
def test_nothing_is_evaluated_twice_in_the_same_way(world: World) -> None:
    search_of(world).best()
    assert len(world.probed) == len(set(world.probed))


def test_a_line_ends_where_it_costs_more_than_what_holds() -> None:
    world = World([1, 12], [1, 12], [0])
    search_of(world).best()
    assert {probe for probe, _ in world.probed if probe[0] == 1} == {(1, 5)}


def test_few_probes_are_enough() -> None:
    world = World([9, 5, 11, 3], [2, 4, 1, 9], [0])
    search_of(world).best()
    assert len(world.probed) <= 16 < len(SIZES) * 4


def test_the_work_of_a_search_grows_with_the_combinations_and_no_faster() -> None:
    """Counted in looks at what a combination costs, which every comparison takes."""
    looks = [_looks_per_line(count) for count in (50, 400)]
    assert looks[1] <= 1.5 * looks[0]


def _looks_per_line(count: int) -> float:
    looks = 0

    class Counted(Search):
        def cost(self, probe: Probe) -> float:
            nonlocal looks
            looks += 1
            return super().cost(probe)

    world = World([1 + 7 * line % 12 for line in range(count)], [1 + line % 13 for line in range(count)], [0])
    assert (
        Counted([SearchLine(float(cost)) for cost in world.costs], SIZES, world.evaluate).best()
        == world.best()
    )
    return looks / count


def test_a_line_of_a_search_is_settled_by_neighbours() -> None:
    def search(slacks: Sequence[float]) -> Search:
        def evaluate(probes: Any, may_stop: bool) -> list[Judgement]:
            return [Known({probe: slacks[probe[1]]}).known[probe] for probe in probes]

        return Search([SearchLine(1.0)], list(range(1, len(slacks) + 1)), evaluate)

    found = search([-1.0, -0.5, 0.1, 0.2])
    assert found.best([0]) == (0, 2)
    assert (found.least(0), found.most_failing(0), found.settled(0)) == (2, 1, True)
