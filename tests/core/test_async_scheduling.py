"""Steps that are planned and launched before the outcome of the one before them is known."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_py.core.config import SchedulerConfig
from blis_py.core.request import FinishReason, Request, Status
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step

ROOMY = SchedulerConfig(
    num_kv_blocks=1000,
    max_model_len=1000,
    block_size=4,
    enable_prefix_caching=False,
    async_scheduling=True,
)


def request(name: str, prompt: int, output: int, limit: int | None = None, **more: Any) -> Request:
    return Request(name, 0, prompt, output, output if limit is None else limit, **more)


def launched(scheduler: Scheduler) -> Step:
    """The next step, planned and on its way."""
    step = scheduler.schedule(0)
    assert step is not None
    scheduler.advance(step)
    scheduler.check()
    return step


def names(requests: object) -> list[str]:
    return [r.id for r in requests]  # type: ignore[attr-defined]


def test_a_request_with_its_prompt_in_flight_decodes_in_the_step_behind_it() -> None:
    scheduler = Scheduler(ROOMY)
    scheduler.add(one := request("A", 10, 4))
    first, second = launched(scheduler), launched(scheduler)
    assert (first.features.prefill_tokens, second.features.decode_seqs) == (10, 1)
    assert second.features.decode_kv_tokens == 10
    assert scheduler.resolve(first) == []
    third = launched(scheduler)
    assert scheduler.resolve(second) == []
    launched(scheduler)  # its last
    assert (one.status, one.generated) == (Status.ENDING, 4)
    assert scheduler.resolve(third) == []


def test_an_end_by_length_costs_no_forward_and_keeps_place_and_blocks_until_it_is_known() -> None:
    scheduler = Scheduler(replace(ROOMY, max_num_seqs=1))
    scheduler.add(one := request("A", 10, 1))
    scheduler.add(request("B", 3, 1))
    step = launched(scheduler)
    assert scheduler.schedule(0) is None, "B waits for the place of A"
    assert (names(scheduler.running), scheduler.kv.pool.in_use) == (["A"], 3)
    assert scheduler.resolve(step) == [one]
    assert names(launched(scheduler).admitted) == ["B"]
    assert scheduler.counters.discarded_tokens == 0


@pytest.mark.parametrize(("limit", "discarded"), [(0, 1), (9, 1), (3, 0)])
def test_an_end_of_sequence_costs_one_forward_but_on_the_last_permitted_token(
    limit: int, discarded: int
) -> None:
    scheduler = Scheduler(ROOMY)
    scheduler.add(one := request("A", 10, 3, limit, ends_by_eos=True))
    forwards, flight = 0, None
    while True:
        step = scheduler.schedule(0)
        if step is not None:
            scheduler.advance(step)
            forwards += 1
        if flight is not None:
            scheduler.resolve(flight)
        flight = step
        if flight is None and not scheduler.running:
            break
    assert (forwards, scheduler.counters.discarded_tokens) == (3 + discarded, discarded)
    assert (one.generated, one.last_tick, one.finish_reason) == (3, 2, FinishReason.STOP)
    assert scheduler.kv.pool.num_free == scheduler.kv.pool.total


def test_an_engine_that_learns_of_lengths_late_discards_a_token_at_every_end() -> None:
    scheduler = Scheduler(replace(ROOMY, late_length_stops=True))
    scheduler.add(one := request("A", 10, 2))
    first, second, third = (launched(scheduler) for _ in range(3))
    assert (scheduler.resolve(first), scheduler.resolve(second)) == ([], [one])
    assert scheduler.resolve(third) == []
    assert (one.generated, scheduler.counters.discarded_tokens) == (2, 1)


def test_pages_of_the_preempted_serve_in_the_same_step_and_its_token_in_flight_is_kept() -> None:
    scheduler = Scheduler(replace(ROOMY, num_kv_blocks=5))
    scheduler.add(request("A", 8, 9))
    scheduler.add(other := request("B", 7, 9))
    first = launched(scheduler)  # both prompts: 2 blocks each
    second = launched(scheduler)  # A takes the last block, B's token fits
    third = scheduler.schedule(0)  # B needs a block
    assert third is not None
    assert (names(third.preempted), names(scheduler.decoding)) == (["B"], ["A"])
    scheduler.advance(third)
    assert (other.status, other.num_tokens) == (Status.WAITING, 9), "both its tokens are on their way"
    assert scheduler.resolve(first) == scheduler.resolve(second) == []
    assert other.num_tokens == 9, "and are computed again with its prompt"


@pytest.mark.parametrize("generated", [1, 2])
def test_an_end_of_sequence_of_a_request_preempted_meanwhile_ends_it_where_it_waits(generated: int) -> None:
    scheduler = Scheduler(replace(ROOMY, num_kv_blocks=5))
    scheduler.add(request("A", 8, 9))
    scheduler.add(other := request("B", 7, 9))
    first, second = launched(scheduler), launched(scheduler)
    launched(scheduler)
    assert other.status is Status.WAITING
    if generated == 2:
        scheduler.resolve(first)
    assert scheduler.resolve([first, second][generated - 1], stopped=[other]) == [other]
    assert (other.generated, other.finish_reason) == (generated, FinishReason.STOP)
    assert scheduler.counters.discarded_tokens == 2 - generated
    assert not scheduler.waiting


def test_pages_of_a_request_without_further_steps_are_taken_before_any_preemption() -> None:
    scheduler = Scheduler(replace(ROOMY, num_kv_blocks=4))
    scheduler.add(request("A", 8, 5))
    scheduler.add(ending := request("B", 7, 1))
    first = launched(scheduler)
    second = launched(scheduler)  # A's first token needs a block, and all are taken
    assert second.preempted == []
    assert (ending.status, ending.block_table) == (Status.ENDING, [])
    assert scheduler.resolve(first) == [ending]
    scheduler.check()


def test_a_request_without_further_steps_is_never_preempted() -> None:
    """Its one page serves A; B, which needs another, is preempted itself, though the ended one came later."""
    scheduler = Scheduler(replace(ROOMY, num_kv_blocks=5))
    scheduler.add(request("A", 8, 5))
    scheduler.add(request("B", 8, 5))
    scheduler.add(ending := request("C", 3, 1))
    first, second = launched(scheduler), launched(scheduler)
    assert (names(second.preempted), names(scheduler.decoding)) == (["B"], ["A"])
    assert (ending.status, ending.block_table) == (Status.ENDING, [])
    assert scheduler.resolve(first) == [ending]
    scheduler.check()


def test_tokens_that_will_not_be_delivered_are_not_counted_at_a_timeout() -> None:
    scheduler = Scheduler(ROOMY)
    scheduler.add(one := request("A", 10, 9))
    first = launched(scheduler)
    second = launched(scheduler)
    scheduler.resolve(first)
    scheduler.abort(one)
    assert (one.generated, one.first_tick, one.last_tick) == (1, 0, 0)
    assert scheduler.resolve(second) == []
    scheduler.add(two := request("B", 10, 9))
    launched(scheduler)
    scheduler.abort(two)
    assert (two.generated, two.first_tick, two.last_tick) == (0, -1, -1)


def driven(scheduler: Scheduler, requests: list[Request], rng: random.Random) -> dict[str, int]:
    """Serves requests as an engine would, whose model ends some early and whose clients give up.

    Returns:
        Forwards launched for each.
    """
    arrivals, forwards, flight = list(requests), dict.fromkeys(names(requests), 0), None
    stops = {r: rng.randint(1, 20) for r in requests if rng.random() < 0.5}
    seen = dict.fromkeys(requests, 0)
    while True:
        while arrivals and rng.random() < 0.4:
            if scheduler.add(arrivals.pop(0)) is not None:
                raise AssertionError("all fit")
        if rng.random() < 0.1 and (known := [*scheduler.running, *scheduler.waiting]):
            scheduler.abort(rng.choice(known))
        step = scheduler.schedule(0)
        here: list[Request] = []
        if step is not None:
            here = [r for r, n in step.prefills if r.computed + n == r.num_tokens] + list(scheduler.decoding)
            for one in {*scheduler.decoding, *(r for r, _ in step.prefills)}:
                forwards[one.id] += 1
            scheduler.advance(step)
            scheduler.check()
        if flight is not None:
            ended, emitting = flight
            stopped = []
            for one in emitting:
                if one.status is not Status.FINISHED:
                    seen[one] += 1
                    if seen[one] == stops.get(one):
                        stopped.append(one)
            for one in scheduler.resolve(ended, stopped=stopped):
                assert one.generated == seen[one], one
            scheduler.check()
        flight = None if step is None else (step, here)
        if flight is None and not (arrivals or scheduler.running or scheduler.waiting):
            return forwards


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["hash", "radix"]), st.sampled_from(["fcfs", "priority"]))
def test_whatever_happens_to_them_requests_get_the_tokens_they_should_and_leave_nothing_behind(
    seed: int, cache: str, victims: str
) -> None:
    rng = random.Random(seed)
    config = SchedulerConfig(
        num_kv_blocks=rng.randint(12, 40),
        max_model_len=200,
        block_size=4,
        max_num_seqs=rng.choice([2, 4, 50]),
        max_num_batched_tokens=rng.choice([5, 16, 200]),
        batch_former=rng.choice(["running-first", "prefill-first"]),
        preemption_policy=victims,
        prefix_cache=cache,
        async_scheduling=True,
    )
    texts = [[(f"text {rng.randint(0, 3)}", i) for i in range(4)] for _ in range(20)]
    requests = []
    for i in range(rng.randint(1, 20)):
        prompt, limit = rng.randint(1, 25), rng.randint(1, 20)
        keys = texts[i][: rng.randint(0, prompt // 4)]
        requests.append(Request(f"{i}", i, prompt, None, limit, rng.randint(0, 2), block_keys=keys))
    scheduler = Scheduler(config)
    driven(scheduler, requests, rng)
    assert all(r.status is Status.FINISHED for r in requests)
    for one in requests:
        if one.finish_reason is not FinishReason.ABORT:
            assert 1 <= one.generated <= one.max_tokens
    scheduler.check()
    assert scheduler.kv.pool.num_free == scheduler.kv.pool.total
