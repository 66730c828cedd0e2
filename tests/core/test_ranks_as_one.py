"""A group of ranks passes calls on to one rank or to all of them, and books what was launched first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.core.config import SchedulerConfig
from blis_py.core.features import StepFeatures
from blis_py.core.rank_schedulers import scheduler_of
from blis_py.core.ranks import GroupStep, Rank, RankedScheduler
from blis_py.core.request import NEVER_NS, FinishReason, Request
from blis_py.core.step import Prefills, Step


class Apart:
    """In place of the scheduler of a rank: what it is, and what was called."""

    def __init__(self, name: int) -> None:
        self.name, self.calls = name, list[tuple[Any, ...]]()
        self.first_deadline_ns, self.lets_go, self.loads_kv, self.is_settled = NEVER_NS, False, False, True
        self.queue_depth = self.committed = self.decode_tokens = name
        self.decode_seqs, self.kv_under_way, self.holds, self.has_candidates = name, False, False, False
        self.queued, self.decoding, self.running, self.waiting = [f"q{name}"], [f"d{name}"], {}, []
        self.held: list[int] = []
        self.tick = self.resolved = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            self.calls.append((name, *given))
            found = {
                "take_preempted_in_dummy": [],
                "expire": [],
                "resolve": [],
                "ends_with": True,
                "decode_blocks": self.name,
            }
            return (found | {"blocks_in_use": 10 * self.name}).get(name)

        return call

    def advance(self, part: Step, steps: int) -> None:
        self.calls.append(("advance", part, steps))
        self.tick += steps

    def next_change_ns(self, now_ns: int) -> int:
        return now_ns + 100 - self.name

    def hold_prompts(self, until_tick: int) -> bool:
        self.held.append(until_tick)
        return self.name == 1


Group = tuple[RankedScheduler, list[Any], list[Any]]


@pytest.fixture
def group() -> Group:
    """Three ranks, two steps from the start; the second has launched both of a run of seven."""
    found: Any = scheduler_of(
        SchedulerConfig(
            num_kv_blocks=90,
            max_model_len=60,
            block_size=4,
            max_num_seqs=9,
            max_num_batched_tokens=30,
            ranks=3,
        )
    )
    parts = [Apart(number) for number in (1, 2, 3)]
    for rank, part in zip(found.ranks, parts, strict=True):
        rank.scheduler, rank.may_vary, rank.until_tick, part.tick = part, True, 2, 2
    busy, found.tick, found.resolved = found.ranks[1], 2, 1
    busy.part, busy.works, busy.until_tick, parts[1].tick = Step(StepFeatures(decode_seqs=2)), True, 7, 0
    return found, found.ranks, parts


REQUEST = Request("r", 0, 4)


def calls(parts: list[Any]) -> list[list[str]]:
    return [[name for name, *_ in part.calls] for part in parts]


@pytest.mark.parametrize(
    ("act", "called"),
    [
        (lambda g: g.cancel(REQUEST, 5), [[], ["cancel"], []]),
        (lambda g: g.set_deadline(REQUEST, 5), [[], ["set_deadline"], []]),
        (lambda g: g.kv_ready_at(REQUEST, 5), [[], ["kv_ready_at"], []]),
        (lambda g: g.settle(REQUEST), [[], ["advance", "plan_alike", "settle"], []]),
        (lambda g: g.abort(REQUEST), [[], ["advance", "abort"], []]),
        (lambda g: g.let_go(REQUEST, 5), [["let_go"]] * 3),
        (lambda g: g.book(), [[], ["advance", "plan_alike"], []]),
        (lambda g: g.take_blocks(3), [[], ["take_blocks"], []]),
        (lambda g: g.plan_alike(), [["plan_alike"], [], ["plan_alike"]]),
        (
            lambda g: g.leave_out_last(),
            [["leave_out_last"], ["advance", "plan_alike", "leave_out_last"], ["leave_out_last"]],
        ),
    ],
)
def test_what_concerns_a_request_goes_to_its_rank_and_the_rest_to_all(
    group: Group, act: Callable[[RankedScheduler], Any], called: list[list[str]]
) -> None:
    found, ranks, parts = group
    found._rank_of[REQUEST] = ranks[1]
    ranks[1].load.prompt_tokens = 7
    act(found)
    assert calls(parts) == called
    if called[1][-1:] == ["abort"]:
        assert parts[1].calls[-1] == ("abort", REQUEST, FinishReason.ABORT)
        assert (ranks[1].load.prompt_tokens, found._rank_of) == (3, {})


def test_a_request_of_no_rank_needs_nothing_settled(group: Group) -> None:
    found, _, parts = group
    found.settle(REQUEST)
    assert calls(parts) == [[], [], []]
    assert not found.ends_with(REQUEST, Step(StepFeatures()), 1)


@pytest.mark.parametrize(
    "act",
    [
        lambda g: g.cancel(REQUEST, 5),
        lambda g: g.set_deadline(REQUEST, 5),
        lambda g: g.abort(REQUEST),
        lambda g: g.let_go(REQUEST, 5),
        lambda g: g.free_let_go(),
        lambda g: g.expire(5),
    ],
)
def test_the_first_deadline_is_that_of_any_rank_after_every_change(
    group: Group, act: Callable[[RankedScheduler], Any]
) -> None:
    found, ranks, parts = group
    found._rank_of[REQUEST] = ranks[1]
    parts[0].first_deadline_ns, parts[2].first_deadline_ns = 900, 800
    act(found)
    assert found.first_deadline_ns == 800


def test_only_ranks_whose_deadlines_have_passed_expire_requests(group: Group) -> None:
    found, ranks, parts = group
    parts[0].first_deadline_ns, parts[1].first_deadline_ns, parts[2].first_deadline_ns = 6, 5, 4
    found._rank_of[REQUEST] = ranks[1]
    found.running[REQUEST] = None
    parts[1].expire = lambda now_ns: [REQUEST]
    assert found.expire(5) == [REQUEST]
    assert calls(parts) == [[], ["advance"], ["expire"]]
    assert (found._rank_of, found.running) == ({}, {})


def test_only_ranks_that_let_go_free_what_they_let_go(group: Group) -> None:
    found, _, parts = group
    parts[1].lets_go = True
    found.free_let_go()
    assert calls(parts) == [[], ["advance", "free_let_go"], []]


def test_counts_of_a_group_are_those_of_its_ranks(group: Group) -> None:
    found, _, parts = group
    assert (found.queue_depth, found.committed, found.decode_tokens) == (6, 6, 6)
    assert (found.queued, list(found.decoding)) == (["q1", "q2", "q3"], ["d1", "d2", "d3"])
    assert found.next_change_ns(1000) == 1097
    for name in ("kv_under_way", "holds", "has_candidates"):
        assert not getattr(found, name)
        setattr(parts[2], name, True)
        assert getattr(found, name)


def test_blocks_in_use_are_those_of_the_steps_launched_and_of_one_where_none_is(group: Group) -> None:
    found, ranks, parts = group
    ranks[2].until_tick = 6
    assert found.blocks_in_use(3) == 60
    assert [part.calls for part in parts] == [
        [("blocks_in_use", 1)], [("blocks_in_use", 5)], [("blocks_in_use", 3)]
    ]  # fmt: skip


def test_a_request_ends_with_a_step_of_its_own_rank(group: Group) -> None:
    found, ranks, parts = group
    found._rank_of[REQUEST] = ranks[1]
    assert found.ends_with(REQUEST, Step(StepFeatures()), 3)
    assert parts[1].calls == [("ends_with", REQUEST, ranks[1].part, 5)]


@pytest.mark.parametrize(
    ("candidates", "seqs", "held"),
    [
        ([True, False, True], [1, 1, 1], True),
        ([True, True, True], [1, 1, 1], False),
        ([False, False, False], [1, 1, 1], False),
        ([True, False, True], [1, 0, 1], False),
    ],
)
def test_prompts_are_held_while_a_rank_has_none_and_all_decode(
    group: Group, candidates: list[bool], seqs: list[int], held: bool
) -> None:
    found, _, parts = group
    found._balance_steps = 3
    for part, has, number in zip(parts, candidates, seqs, strict=True):
        part.has_candidates, part.decode_seqs = has, number
    for tick in (10, 11, 12, 13, 14):
        found.tick = tick
        found._balance()
    opens = [13, 13, 13, 0, 17] if held else [0] * 5
    assert [part.held for part in parts] == [opens] * 3


def test_steps_of_a_group_are_as_many_as_every_rank_repeats(group: Group) -> None:
    found, ranks, _ = group
    for rank, left in zip(ranks, (9, 5, 7), strict=True):
        rank.until_tick = found.tick + left
    assert found.identical_decode_steps(step_of()) == 5
    assert found.identical_decode_steps(step_of(prefills=[(REQUEST, 1)])) == 1
    assert found.identical_decode_steps(step_of(preempted=[REQUEST])) == 1


def step_of(prefills: Prefills | None = None, preempted: list[Request] | None = None) -> GroupStep:
    return GroupStep(StepFeatures(), prefills or [], [], preempted or [], {})


def test_the_most_blocks_ever_used_are_kept_as_steps_are_launched(group: Group) -> None:
    found, ranks, parts = group
    ranks[0].until_tick = ranks[2].until_tick = 11
    for rank, part in zip(ranks, parts, strict=True):
        rank.works, rank._used, rank._used_tick = True, 10 * part.name, 3
    step = step_of()
    found.advance(step, 3)
    assert (found._pool.most_used, found.tick, step.end_tick) == (66, 5, 5)
    assert [part.calls for part in parts] == [[("decode_blocks", 3, 2)]] * 3
    found._pool.most_used = 100
    found.advance(step, 1)
    assert found._pool.most_used == 100


def test_a_rank_is_booked_when_its_run_is_over_and_its_ends_are_those_of_the_step(group: Group) -> None:
    found, ranks, parts = group
    ranks[0].until_tick = ranks[2].until_tick = 11
    ranks[1].part.ending = [REQUEST]
    step = step_of()
    found.advance(step, 4)
    assert ([part.tick for part in parts], step.ending, step.ends) == ([2, 0, 2], [], [])
    found.advance(step, 1)
    assert [part.tick for part in parts] == [2, 7, 2]
    assert (step.ending, step.ends) == ([REQUEST], [(ranks[1], ranks[1].part)])


def test_outcomes_go_to_the_ranks_with_ends_once_the_last_of_the_steps_has_ended(group: Group) -> None:
    found, ranks, parts = group
    ranks[0].until_tick = ranks[2].until_tick = 11
    ranks[1].part.ending = [REQUEST]
    found._rank_of[REQUEST] = ranks[1]
    step = step_of()
    found.advance(step, 5)
    parts[1].resolve = lambda part, steps: [REQUEST]
    assert found.resolve(step, 5) == []
    assert (found.resolved, parts[1].resolved) == (6, 1)
    assert found.resolve(step) == [REQUEST]
    assert (found.resolved, found._rank_of) == (7, {})
    with pytest.raises(NotImplementedError):
        found.resolve(step, 1, [REQUEST])


def test_ranks_plan_when_their_runs_are_over_or_time_may_change_them(group: Group) -> None:
    found, ranks, parts = group
    planned = Step(StepFeatures(decode_seqs=3))
    parts[0].schedule = lambda now_ns: planned
    parts[0].identical_decode_steps = lambda part: 4
    step: Any = found.schedule(0)
    assert [rank.until_tick for rank in ranks] == [6, 7, 2 + (1 << 60)]
    assert (parts[1].calls, parts[0].resolved) == ([], 1)
    assert (step.features.ranks[0], step.features.since) == (planned.features, [2, 0, 2])
    parts[1].loads_kv = True
    found.schedule(0)
    assert calls(parts)[1] == ["advance", "unplan", "schedule", "take_preempted_in_dummy", "blocks_in_use"]


class Queue(list[int]):
    """A request, and the time at which the order of the queue changes."""

    def __init__(self, changes_ns: int | None) -> None:
        super().__init__([1])
        self._changes_ns = changes_ns

    def next_change_ns(self, now_ns: int) -> int | None:
        return self._changes_ns


def rank_of(**of: Any) -> tuple[Rank, Apart]:
    apart: Any = Apart(1)
    vars(apart).update(of)
    return Rank(apart), apart


def test_what_a_rank_does_next_varies_when_kv_may_come_or_its_queue_changes() -> None:
    """From the time on at which the order changes that it was planned with."""
    rank, _ = rank_of(loads_kv=True)
    assert rank.varies(0)
    rank, apart = rank_of(loads_kv=False)
    for changes_ns in (None, 7):
        queue: Any = Queue(changes_ns)
        apart.waiting = queue
        rank.plan(0, 0, 0)
        assert [rank.varies(now_ns) for now_ns in (6, 7, 8)] == [False] + 2 * [changes_ns is not None]
    queue.clear()
    rank.plan(0, 0, 0)
    assert not rank.varies(8)


def test_ranks_with_candidates_plan_again_where_the_group_has_no_step(group: Group) -> None:
    """No step of the group takes place in between, as ticks count."""
    found, ranks, parts = group
    ranks[1].until_tick, parts[0].has_candidates, parts[1].has_candidates = 2, True, True
    assert found.schedule(0) is None
    assert [rank.until_tick for rank in ranks] == [2, 2, 2 + (1 << 60)]


@pytest.mark.parametrize(
    ("candidates", "settled", "once"), [(False, True, False), (True, True, True), (False, False, True)]
)
def test_an_idle_rank_stays_so_unless_something_may_begin(
    candidates: bool, settled: bool, once: bool
) -> None:
    rank, _ = rank_of(schedule=lambda now_ns: None, has_candidates=candidates, is_settled=settled)
    rank.plan(0, 0, 0)
    assert not rank.works
    assert rank.part.features == StepFeatures()
    assert rank.until_tick == (1 if once else 1 << 60)


def test_what_a_policy_sees_of_a_rank_is_its_queue_and_what_runs() -> None:
    rank, apart = rank_of(queue_depth=4, running={1: None, 2: None})
    apart.kv, rank._used = SimpleNamespace(pool=SimpleNamespace(total=8)), 6
    load = rank.see(0)
    assert (load.waiting, load.running, load.prompt_tokens, load.requests) == (4, 2, 0, 6)
    assert load.kv_use == 0.75


def _given(planned: Step, now_ns: int) -> Step:
    return planned


def test_emissions_of_ranks_are_joined(group: Group) -> None:
    found, _, parts = group
    other = Request("other", 0, 4)
    for part, emissions in ((parts[0], {REQUEST: 2}), (parts[2], {other: 3})):
        planned = Step(StepFeatures(decode_seqs=1))
        planned.emissions = emissions
        part.schedule, part.identical_decode_steps = partial(_given, planned), lambda part: 1
    step = found.schedule(0)
    assert step is not None
    assert step.emissions == {REQUEST: 2, other: 3}
    assert step_of().emissions is None
