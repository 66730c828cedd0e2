"""A load over a longer time: generated further where there is more of it, otherwise repeated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_plans import CONFIG

from blis_py.config.models import RunConfig
from blis_py.planning.longer import _named as _named_copies
from blis_py.planning.longer import _permanent, longer, repeated, resampled
from blis_py.requests.loops import Loop, Loops
from blis_py.requests.sessions import waits
from blis_py.requests.table import RequestTable
from blis_py.setup.demand import Demand

GENERATED = RunConfig()
RECORDED = replace(GENERATED, workload=replace(GENERATED.workload, trace="recording.csv"))


def table(rows: int = 4) -> RequestTable:
    """The last request is a later turn of the first one's session."""
    turn = np.arange(rows) == rows - 1
    return RequestTable.build(
        np.arange(rows) * 10,
        np.full(rows, 5),
        np.full(rows, 2),
        session=np.where(turn, 0, np.arange(rows)),
        round_index=turn.astype(np.int64),
        think_ns=np.where(turn, 7, -1),
    )


def twice(loops: Loops | None, config: RunConfig = RECORDED) -> tuple[Demand, Demand]:
    demand = Demand(table(), 1, loops=loops)
    return demand, longer(config, 2.0, lambda _: demand)


@pytest.mark.parametrize(
    "loops",
    [
        Loops([Loop(slice(0, 4), 2)], at_most=3),
        Loops([Loop(slice(0, 2), 2), Loop(slice(2, 4))]),
        Loops([Loop(slice(0, 3), 2)], later_turns=True),
        Loops([Loop(slice(0, 3))], at_most=4, later_turns=True),
    ],
)
def test_loops_of_several_kinds_or_with_an_end_of_their_own_stay_as_they_are(loops: Loops) -> None:
    demand, found = twice(loops)
    assert found is demand


def test_a_loop_of_all_requests_sends_those_of_all_copies() -> None:
    _, found = twice(Loops([Loop(slice(0, 4), 2, think_ns=5)]))
    assert found.loops is not None
    assert found.loops.parts == [Loop(slice(0, 8), 2, think_ns=5)]
    assert found.table.arrival_ns.tolist() == [0, 10, 20, 30, 40, 50, 60, 70]


def test_turns_that_wait_follow_all_others() -> None:
    _, found = twice(Loops([Loop(slice(0, 3))], later_turns=True))
    assert found.loops is not None
    assert found.loops.parts == [Loop(slice(0, 6))]
    assert waits(found.table).tolist() == [False] * 6 + [True] * 2
    found.loops.check(found.table)  # each is in a loop, or waits


@pytest.mark.parametrize("at_once", [False, True])
def test_requests_at_once_are_repeated_only_where_a_loop_sends_them(at_once: bool) -> None:
    demand = Demand(table().at_once(), 1)
    load = replace(RECORDED.workload, concurrency=3 if at_once else None)
    found = longer(replace(RECORDED, workload=load), 2.0, lambda _: demand)
    assert len(found.table) == (8 if at_once else 4)


@pytest.mark.parametrize(("supplied", "rows"), [(200, 200), (194, 194), (193, 200), (101, 200), (100, 200)])
def test_a_generator_that_supplies_almost_as_many_goes_on(supplied: int, rows: int) -> None:
    """At least 97 % of twice a hundred; with fewer it has an end of its own, and is repeated."""

    def demand_of(config: RunConfig) -> Demand:
        count: Any = config.workload.num_requests
        supply = np.arange(100 if count is None else min(count, supplied))
        return Demand(RequestTable.build(supply * 10, supply + 1, supply + 1), 1)

    found = longer(GENERATED, 2.0, demand_of).table
    assert len(found) == rows
    assert found.prompt_tokens[:100].tolist() == list(range(1, 101))
    assert len(longer(GENERATED, 1.0, demand_of).table) == 100
    assert len(longer(RECORDED, 2.0, demand_of).table) == 200


def test_rounding_of_a_length_adds_no_request() -> None:
    """100 times 1.000000002 is 100."""
    lengths: list[int | None] = []

    def demand_of(config: RunConfig) -> Demand:
        lengths.append(config.workload.num_requests)
        return Demand(table(100), 1)

    longer(GENERATED, 1.000000002, demand_of)
    assert lengths[1:] == [100]


def test_copies_have_names_and_texts_of_their_own_but_for_permanent_ones() -> None:
    table = RequestTable.build(
        np.array([0, 10, 20, 40]),
        np.array([9, 9, 9, 9]),
        np.array([1, 1, 1, 1]),
        content=np.array([0, 1, -1, 0]),
        contents=[(("all", 4), ("own", 5)), (("brief", 9),)],
        deadline_ns=np.array([-1, 12, 20, 0]),
        session=np.array([0, -1, 1, 0]),
        request_id=["a", "b", "c", "d"],
    )
    assert _permanent(table) == {"all", "own"}
    twice = repeated(table, 2)
    period_ns = round(40 * 4 / 3)
    assert twice.arrival_ns.tolist() == [*(0, 10, 20, 40), *(each + period_ns for each in (0, 10, 20, 40))]
    assert twice.deadline_ns.tolist() == [-1, 12, 20, 0, -1, 12 + period_ns, 20 + period_ns, period_ns]
    assert twice.request_id == ["a", "b", "c", "d", "a~1", "b~1", "c~1", "d~1"]
    assert twice.session is not None
    assert twice.session.tolist() == [0, -1, 1, 0, 2, -1, 3, 2]
    assert twice.content.tolist() == [0, 1, -1, 0, 2, 3, -1, 2]
    assert list(twice.contents[2:]) == [(("all", 4), ("own", 5)), (("brief~1", 9),)]
    assert _named_copies(["x"], 3) == ["x", "x~1", "x~2"]
    assert repeated(table, 1) is table


def test_a_text_is_permanent_that_recurs_over_more_than_half_of_the_time() -> None:
    table = RequestTable.build(
        np.array([0, 20, 21, 40]),
        np.full(4, 5),
        np.full(4, 1),
        content=np.array([0, 0, 1, 2]),
        contents=[(("half", 1), ("more", 1)), (("more", 1),), (("late", 1),)],
    )
    assert _permanent(table) == {"more"}


def test_a_load_that_is_not_to_be_longer_stays_as_it_is() -> None:
    demand = Demand(RequestTable.build(np.arange(3), np.arange(3) + 1, np.arange(3) + 1), 1)
    assert longer(CONFIG, 1.0, lambda config: demand) is demand
    assert longer(CONFIG, 0.5, lambda config: demand) is demand


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
def test_a_recording_of_two_requests_can_be_drawn_anew_and_of_one_cannot(rows: int) -> None:
    table = RequestTable.build(np.arange(rows) * 10, np.arange(rows) + 5, np.full(rows, 2))
    draws = [resampled(table, seed).prompt_tokens.tolist() for seed in range(20)]
    differ = any(draw != table.prompt_tokens.tolist() for draw in draws)
    assert differ == (rows > 1)
    assert all(set(draw) <= set(table.prompt_tokens.tolist()) for draw in draws)
