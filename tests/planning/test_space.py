"""The space that a plan searches: its lines, their costs, and the cheapest that holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from small_plans import CONFIG

from blis_py.planning import _space
from blis_py.planning.axes import Axis
from blis_py.planning.goal import Goal
from blis_py.planning.job import JobOutcome
from blis_py.planning.prices import Prices
from blis_py.planning.study import Study


def space_of(sizes: Sequence[int] = (1, 2), axes: Sequence[Axis] = ()) -> _space.Space:
    runner: Any = SimpleNamespace()
    study = Study(start=replace(CONFIG, slo=["ttft.p99=1s"]))
    return _space.Space(study, axes, sizes, Prices({"h100": 2.0}), Goal(), runner, lambda line: None)


def test_a_line_is_added_where_its_settings_can_be_run() -> None:
    space = space_of()
    assert not space.add(0, {"max_num_seqs": 0})
    assert (len(space.points), len(space.costs)) == (1, 1)
    assert space.runs(0)
    assert space.add(0, {"max_num_seqs": 7})
    assert (len(space.points), space.costs) == (2, [2.0, 2.0])
    assert [space.config((line, 1)).scheduler.max_num_seqs == 7 for line in (0, 1)] == [False, True]
    assert space.config((1, 1)).num_instances == 2
    assert space.changed((1, 1), {"max_num_seqs": 9}).scheduler.max_num_seqs == 9


def test_a_run_is_drained_unless_a_horizon_is_its_end() -> None:
    assert _space.drained(replace(CONFIG, drain=False)).drain
    assert not _space.drained(replace(CONFIG, drain=False, horizon=5)).drain


def test_the_best_so_far_is_the_cheapest_that_holds_and_gives_way_when_it_does_not() -> None:
    space = space_of((1, 2, 3))

    def best_after(probe: tuple[int, int], holds: bool) -> Any:
        outcome = JobOutcome(refused=None if holds else "no", early_stop="fine" if holds else None)
        space._outcomes[probe] = outcome
        space._compare(probe)
        return space._best

    assert [
        best_after(*each) for each in (((0, 2), True), ((0, 1), True), ((0, 2), True), ((0, 0), False))
    ] == [
        *((0, 2), (0, 1), (0, 1), (0, 1)),
    ]
    assert best_after((0, 1), False) == (0, 2)
    assert best_after((0, 2), False) is None


@pytest.mark.parametrize(("axes", "trials"), [(4, 16), (4, 17), (3, 1)])
def test_all_lines_of_a_grid_are_searched_if_trials_suffice_or_axes_are_few(axes: int, trials: int) -> None:
    space: Any = SimpleNamespace(
        axes=[Axis(f"a{number}", "", (0, 1)) for number in range(axes)],
        points=[{}] * 2**axes,
        sizes=[1],
    )
    assert _space.Space.search(space, lambda *_: pytest.fail("not all at once"), trials) == [*range(2**axes)]
