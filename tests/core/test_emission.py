"""Requests whose decode steps emit several tokens."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from blis_py.core.config import SchedulerConfig
from blis_py.core.request import Request, Status
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step


@dataclass
class Drafts:
    """`depth` drafts a step, of which those of `accepted` in turn are right, for all requests but `R...`."""

    depth: int
    accepted: tuple[int, ...]

    def is_irregular(self, request: Request) -> bool:
        return not request.id.startswith("R")

    def rows(self, request: Request) -> int:
        return 1 + self.depth

    def tokens(self, request: Request, step: int, rows: int) -> int:
        return 1 + self.accepted[step % len(self.accepted)]


def machine(depth: int, *accepted: int, blocks: int = 100, **settings: Any) -> Scheduler:
    config = SchedulerConfig(num_kv_blocks=blocks, max_model_len=1000, block_size=4, **settings)
    return Scheduler(config, emission=Drafts(depth, accepted))


def step(scheduler: Scheduler) -> Step:
    planned = scheduler.schedule(0)
    assert planned is not None
    scheduler.finish(planned)
    scheduler.check()
    return planned


def emitted(step: Step) -> dict[str, int] | None:
    return step.emissions and {request.id: tokens for request, tokens in step.emissions.items()}


def test_a_decode_step_emits_what_is_accepted_and_computes_what_was_drafted() -> None:
    scheduler = machine(3, 0, 2, 0, 3)
    scheduler.add(one := Request("A", 0, 10, 8, 8))
    steps = [step(scheduler) for _ in range(4)]
    assert [emitted(s) for s in steps] == [None, {"A": 3}, None, {"A": 3}], "never more than its length"
    assert [s.prefills for s in steps] == [[(one, 10)], [(one, 4)], [(one, 4)], [(one, 3)]]
    assert [s.features.emitted_rows for s in steps] == [1, 4, 4, 3]
    features = [s.features for s in steps]
    assert [f.prefill_tokens for f in features] == [10, 0, 0, 0]
    assert [(f.decode_seqs, f.decode_kv_tokens) for f in features] == [(0, 0), (4, 10), (4, 13), (3, 14)]
    assert (one.status, one.generated, one.first_tick, one.last_tick) == (Status.FINISHED, 8, 0, 3)
    assert one.bursts == [(1, 3), (3, 3)]
    assert (scheduler.counters.prefill_tokens, scheduler.decode_tokens) == (10, 11)
    assert scheduler.kv.pool.num_free == 100


def test_other_requests_stay_in_the_aggregate() -> None:
    scheduler = machine(1, 1)
    scheduler.add(Request("R", 0, 10, 8, 8))
    step(scheduler)
    later = scheduler.schedule(0)
    assert later is not None
    assert (later.features.decode_seqs, list(later.prefills), later.emissions) == (1, [], None)
    assert scheduler.identical_decode_steps(later) == 7
    scheduler.finish(later, 7)


def test_steps_with_such_requests_come_one_by_one() -> None:
    scheduler = machine(1, 1)
    for name in ("R", "A"):
        scheduler.add(Request(name, 0, 10, 8, 8))
    step(scheduler)
    later = scheduler.schedule(0)
    assert later is not None
    assert scheduler.identical_decode_steps(later) == 1


def test_drafts_have_blocks_which_serve_the_next_ones_where_they_are_refused() -> None:
    scheduler = machine(7, 0, blocks=5)
    scheduler.add(one := Request("A", 0, 8, 9, 12))
    step(scheduler)
    held = []
    for _ in range(7):
        step(scheduler)
        held.append(len(one.block_table))
    assert held == [4] + [5] * 6, "never beyond the 12 tokens it may have"


def test_budget_that_is_left_limits_the_drafts() -> None:
    scheduler = machine(7, 7, max_num_batched_tokens=3)
    scheduler.add(one := Request("A", 0, 3, 20, 20))
    step(scheduler)
    assert (step(scheduler).prefills, one.generated) == ([(one, 3)], 4)


@pytest.mark.parametrize("former", ["running-first", "prefill-first"])
def test_with_too_few_blocks_the_last_is_preempted_and_goes_on_with_what_it_had_emitted(former: str) -> None:
    scheduler = machine(2, 2, blocks=6, batch_former=former)
    for name in ("A", "B"):
        scheduler.add(Request(name, 0, 7, 12, 12))
    every = [*scheduler.waiting]
    while scheduler.running or scheduler.waiting:
        step(scheduler)
    assert [r.generated for r in every] == [12, 12]
    assert [r.preemptions > 0 for r in every] == [False, True]
    assert scheduler.kv.pool.num_free == 6


def test_prompts_come_before_such_decodes_where_the_batch_former_requires_it() -> None:
    scheduler = machine(1, 1, batch_former="prefill-first", max_num_batched_tokens=10)
    scheduler.add(first := Request("A", 0, 10, 20, 20))
    step(scheduler)
    scheduler.add(second := Request("B", 0, 9, 20, 20))
    assert step(scheduler).prefills == [(second, 9), (first, 1)]


@pytest.mark.parametrize(("late", "discarded"), [(False, 0), (True, 1)])
def test_asynchronously_a_step_behind_the_last_one_is_launched_where_lengths_are_learned_late(
    late: bool, discarded: int
) -> None:
    scheduler = machine(2, 2, async_scheduling=True, late_length_stops=late)
    scheduler.add(one := Request("A", 0, 10, 6, 6))
    flight: Step | None = None
    while flight is not None or scheduler.running or scheduler.waiting:
        planned = scheduler.schedule(0)
        if planned is not None:
            scheduler.advance(planned)
        if flight is not None:
            scheduler.resolve(flight)
        flight = planned
        scheduler.check()
    assert (one.generated, one.last_tick, one.bursts) == (6, 2, [(1, 3), (2, 2)])
    assert scheduler.counters.discarded_tokens == discarded
    assert scheduler.kv.pool.num_free == 100


def test_tokens_in_flight_of_a_timed_out_request_are_taken_back() -> None:
    scheduler = machine(2, 2, async_scheduling=True)
    scheduler.add(one := Request("A", 0, 10, 60, 60))
    steps = []
    for _ in range(3):
        planned = scheduler.schedule(0)
        assert planned is not None
        scheduler.advance(planned)
        steps.append(planned)
    scheduler.resolve(steps[0])
    assert one.generated == 7
    scheduler.abort(one)
    assert (one.generated, one.bursts) == (1, [])


def test_prompts_that_are_held_back_do_not_hold_back_requests_that_emit_several_tokens() -> None:
    """Steps of `prefill_schedule_interval` without prompts serve every decode, however many it emits."""
    scheduler = machine(2, 1, max_num_batched_tokens=8, prefill_schedule_interval=4)
    scheduler.add(one := Request("A", 0, 6, 30, 30))
    step(scheduler)
    scheduler.add(two := Request("B", 0, 20, 4, 4))
    steps = [step(scheduler) for _ in range(8)]
    tokens = [dict(planned.prefills) for planned in steps]
    assert [each.get(one) for each in tokens] == [3] * 8
    with_prompts = [number for number, each in enumerate(tokens) if two in each]
    assert with_prompts
    assert len(with_prompts) < 8
    while one.status is not Status.FINISHED or two.status is not Status.FINISHED:
        step(scheduler)
    assert scheduler.kv.pool.num_free == 100


@pytest.mark.parametrize("interval", [2, 4, 7])
@pytest.mark.parametrize("seed", range(6))
def test_held_prompts_beside_drafts_end_and_leak_nothing(interval: int, seed: int) -> None:
    rng = Random(seed)
    settings = {"max_num_batched_tokens": rng.choice((6, 16, 64)), "max_num_seqs": rng.choice((2, 8))}
    scheduler = machine(
        rng.randint(1, 3), 1, 0, blocks=rng.choice((16, 60)), prefill_schedule_interval=interval, **settings
    )
    requests = []
    for number in range(12):
        output = rng.randint(1, 20)
        name = rng.choice("AR") + str(number)
        requests.append(request := Request(name, 0, rng.randint(1, 30), output, output))
        scheduler.add(request)
        if rng.random() < 0.5:
            step(scheduler)
    for _ in range(2000):
        if all(request.status is Status.FINISHED for request in requests):
            break
        step(scheduler)
    assert all(request.status is Status.FINISHED for request in requests)
    assert scheduler.kv.pool.num_free == scheduler.kv.pool.total
