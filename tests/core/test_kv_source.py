"""Requests that get KV from outside their instance: at once, later, or not at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from blis_py.core.config import SchedulerConfig
from blis_py.core.kv import KeySpace
from blis_py.core.kv_source import Supply
from blis_py.core.request import NEVER_NS, FinishReason, Request, Status
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step

KEYS = KeySpace(4)


@dataclass
class Store:
    """Has the first `tokens` of every request it knows; each load takes `load_ns`."""

    tokens: dict[str, int]
    load_ns: int = 10
    arriving: dict[str, int] = field(default_factory=dict)
    """What comes of a load, where it is less than was offered."""
    loads: list[tuple[str, int, int]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    def offer(self, request: Request, computed_tokens: int, now_ns: int) -> Supply | None:
        more = self.tokens.get(request.id, 0) - computed_tokens
        return Supply(more, now_ns + self.load_ns) if more > 0 else None

    def load(self, request: Request, computed_tokens: int, supply: Supply, now_ns: int) -> None:
        self.loads.append((request.id, computed_tokens, supply.tokens))

    def arrived(self, request: Request, now_ns: int) -> int:
        return self.arriving.get(request.id, 1 << 30)

    def cancel(self, request: Request) -> None:
        self.cancelled.append(request.id)


def machine(store: Store, blocks: int = 20, **settings: Any) -> Scheduler:
    config = SchedulerConfig(num_kv_blocks=blocks, max_model_len=1000, block_size=4, **settings)
    return Scheduler(config, source=store)


def step(scheduler: Scheduler, now_ns: int) -> Step:
    planned = scheduler.schedule(now_ns)
    assert planned is not None
    scheduler.finish(planned)
    scheduler.check()
    return planned


def prefills(step: Step) -> list[tuple[str, int]]:
    return [(request.id, tokens) for request, tokens in step.prefills]


def test_what_is_there_at_once_counts_as_computed() -> None:
    scheduler = machine(store := Store({"A": 10}, load_ns=0))
    scheduler.add(one := Request("A", 0, 20, 2, 2))
    assert prefills(step(scheduler, 0)) == [("A", 10)]
    assert (one.computed, one.cached_tokens, store.loads) == (20, 10, [("A", 0, 10)])


def test_a_request_whose_kv_is_on_its_way_holds_its_blocks_and_lets_others_in() -> None:
    scheduler = machine(Store({"A": 10}))
    scheduler.add(one := Request("A", 0, 20, 2, 2))
    scheduler.add(Request("B", 0, 5, 9, 9))
    assert prefills(step(scheduler, 0)) == [("B", 5)]
    assert (one.status, len(one.block_table)) == (Status.WAITING_FOR_KV, 3)
    assert (scheduler.queue_depth, len(scheduler.waiting), scheduler.queued) == (1, 0, [one])
    assert scheduler.kv.pool.in_use == 3 + 2
    assert prefills(step(scheduler, 9)) == []
    assert prefills(step(scheduler, 10)) == [("A", 10)]
    assert (one.scheduled_ns, one.cached_tokens) == (10, 10)


def test_there_is_no_step_while_all_wait_for_kv_and_the_next_change_is_when_the_first_is_there() -> None:
    scheduler = machine(Store({"A": 10, "B": 10}))
    scheduler.add(Request("A", 0, 20, 1, 1))
    assert scheduler.schedule(0) is None
    scheduler.add(Request("B", 0, 20, 1, 1))
    assert scheduler.schedule(5) is None
    assert scheduler.next_change_ns(5) == 10
    assert prefills(step(scheduler, 10)) == [("A", 10)]
    assert scheduler.next_change_ns(10) == 15


def test_it_does_not_count_against_max_num_seqs_and_goes_before_the_others_once_it_is_there() -> None:
    scheduler = machine(Store({"A": 10}), max_num_seqs=1)
    for name in "ABC":
        scheduler.add(Request(name, 0, 12, 1, 1))
    assert prefills(step(scheduler, 0)) == [("B", 12)]
    assert prefills(step(scheduler, 10)) == [("A", 2)]
    assert prefills(step(scheduler, 11)) == [("C", 12)]


def test_an_offer_at_once_of_what_has_to_be_computed_anyway_is_not_taken() -> None:
    store = Store({"short": 5}, load_ns=0)
    scheduler = machine(store)
    scheduler.add(Request("short", 0, 1))
    assert prefills(step(scheduler, 0)) == [("short", 1)]
    assert store.loads == []


def test_one_token_of_a_prompt_is_always_computed() -> None:
    scheduler = machine(store := Store({"A": 500}, load_ns=0))
    scheduler.add(Request("A", 0, 20, 1, 1))
    assert prefills(step(scheduler, 0)) == [("A", 1)]
    assert store.loads == [("A", 0, 19)]


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_a_source_is_queried_for_what_the_local_cache_lacks_and_others_share_what_arrived(cache: str) -> None:
    store = Store({"A": 8, "B": 16, "C": 16})
    scheduler = machine(store, prefix_cache=cache)
    keys = KEYS.keys([("a", 16)])
    scheduler.add(Request("A", 0, 8, 1, 1, block_keys=keys[:2]))
    assert scheduler.schedule(0) is None
    assert prefills(step(scheduler, 10)) == [("A", 1)]
    scheduler.add(other := Request("B", 0, 17, 2, 2, block_keys=keys))
    assert scheduler.schedule(20) is None
    assert scheduler.kv.match(probe := Request("X", 0, 17, 1, 1, block_keys=keys)) == 2, "not there yet"
    assert prefills(step(scheduler, 30)) == [("B", 1)]
    assert scheduler.kv.match(probe) == 4
    assert (store.loads, other.cached_tokens) == ([("A", 0, 7), ("B", 8, 8)], 16)
    assert scheduler.counters.prefix_hit_tokens == 8, "of the local cache"
    assert scheduler.loads is not None
    assert scheduler.loads.supplied_tokens == 15


@pytest.mark.parametrize("cache", ["hash", "radix"])
@pytest.mark.parametrize("arrived", [0, 5])
def test_what_is_gone_when_it_should_be_there_is_computed(arrived: int, cache: str) -> None:
    scheduler = machine(Store({"A": 10}, arriving={"A": arrived}), prefix_cache=cache)
    scheduler.add(one := Request("A", 0, 20, 1, 1, block_keys=KEYS.keys([("a", 20)])))
    assert scheduler.schedule(0) is None
    assert prefills(step(scheduler, 10)) == [("A", 20 - arrived)]
    assert one.cached_tokens == arrived
    assert scheduler.kv.pool.num_free == 20


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_a_request_timed_out_while_its_kv_is_on_the_way_frees_its_blocks(cache: str) -> None:
    scheduler = machine(store := Store({"A": 10, "B": 10}), prefix_cache=cache)
    scheduler.add(first := Request("A", 0, 20, 1, 1, deadline_ns=5, block_keys=KEYS.keys([("a", 20)])))
    scheduler.add(Request("B", 0, 20, 1, 1))
    assert scheduler.schedule(0) is None
    assert scheduler.next_change_ns(0) == 5
    assert scheduler.expire(5) == [first]
    scheduler.abort(scheduler.queued[0])
    assert (first.finish_reason, store.cancelled) == (FinishReason.TIMEOUT, ["A", "B"])
    assert scheduler.kv.pool.num_free == 20
    assert (scheduler.schedule(10), scheduler.next_change_ns(10)) == (None, NEVER_NS)
    scheduler.check()


def test_a_request_timed_out_between_the_arrival_of_its_kv_and_its_first_step_frees_its_blocks() -> None:
    scheduler = machine(store := Store({"A": 10}), max_num_seqs=1)
    scheduler.add(one := Request("A", 0, 20, 1, 1))
    scheduler.add(Request("B", 0, 8, 30, 30))
    step(scheduler, 0)
    step(scheduler, 10)
    assert (one.status, one.computed) == (Status.WAITING, 10)
    scheduler.abort(one)
    scheduler.check()
    assert (store.cancelled, scheduler.kv.pool.in_use) == ([], 3)


def test_a_load_may_come_at_another_time_than_was_offered() -> None:
    scheduler = machine(Store({"A": 10}, load_ns=NEVER_NS))
    scheduler.add(one := Request("A", 0, 20, 1, 1))
    assert scheduler.schedule(0) is None
    assert scheduler.next_change_ns(0) == NEVER_NS
    scheduler.kv_ready_at(one, 70)
    scheduler.kv_ready_at(one, 50)
    assert scheduler.schedule(49) is None
    assert prefills(step(scheduler, 50)) == [("A", 10)]


def test_loads_that_have_taken_all_blocks_make_room_for_the_first_of_them() -> None:
    scheduler = machine(store := Store({"A": 16, "B": 16}), blocks=8)
    scheduler.add(Request("A", 0, 17, 1, 1))
    scheduler.add(second := Request("B", 0, 17, 1, 1))
    assert scheduler.schedule(0) is None
    assert scheduler.kv.pool.num_free == 0
    assert prefills(step(scheduler, 10)) == [("A", 1)]
    assert (second.preemptions, store.cancelled) == (1, [])
    assert scheduler.schedule(20) is None
    assert prefills(step(scheduler, 30)) == [("B", 1)]


def test_a_running_request_left_alone_takes_the_blocks_of_a_load() -> None:
    scheduler = machine(store := Store({"B": 12}, load_ns=1000), blocks=4)
    scheduler.add(one := Request("A", 0, 4, 4, 4))
    scheduler.add(Request("B", 0, 15, 1, 1))
    step(scheduler, 0)
    assert scheduler.kv.pool.num_free == 0
    second = step(scheduler, 1)
    assert ([r.id for r in second.preempted], one.preemptions, store.cancelled) == (["B"], 0, ["B"])


def test_a_request_goes_on_behind_a_hand_over_with_the_token_it_has() -> None:
    first = Scheduler(SchedulerConfig(num_kv_blocks=20, max_model_len=1000, block_size=4))
    first.add(visit := Request("A", 3, 20, 5, 1, row=7))
    step(first, 0)
    assert (visit.status, visit.generated) == (Status.FINISHED, 1)

    scheduler = machine(Store({"A": 20}))
    scheduler.add(again := visit.next_visit(output_tokens=5, max_tokens=9))
    assert (again.id, again.row, again.carried, again.generated, again.target) == ("A", 7, 1, 1, 5)
    assert scheduler.schedule(0) is None
    computed = [sum(n for _, n in s.prefills) or s.features.decode_seqs for s in
                (step(scheduler, now_ns) for now_ns in range(10, 14))]  # fmt: skip
    assert computed == [1, 1, 1, 1], "never the prompt"
    assert (again.status, again.generated, again.first_tick, again.last_tick) == (Status.FINISHED, 5, 0, 3)


def test_tokens_of_earlier_visits_stay_when_those_of_this_one_are_discarded() -> None:
    scheduler = machine(Store({"A": 20}, load_ns=0), async_scheduling=True)
    scheduler.add(again := Request("A", 3, 20, 9, 9, carried=2))
    planned = scheduler.schedule(0)
    assert planned is not None
    scheduler.advance(planned)
    assert again.generated == 3
    scheduler.abort(again)
    assert (again.generated, again.first_tick) == (2, -1)


def test_a_request_that_has_all_its_output_is_refused() -> None:
    scheduler = machine(Store({}))
    assert scheduler.add(Request("A", 0, 20, 5, 5, carried=5)) == "has all its 5 output tokens"


@pytest.mark.parametrize(("watermark", "runs"), [(0.0, True), (0.3, False)])
def test_a_request_whose_kv_has_arrived_leaves_the_watermark_free_beside_others(
    watermark: float, runs: bool
) -> None:
    """vLLM 0.24: 0.3 of 20 blocks and the one that no request can use are 6; 6 are free, and 1 is needed."""
    scheduler = machine(Store({"A": 16}), watermark=watermark)
    scheduler.add(Request("B", 0, 36, 9, 9))
    step(scheduler, 0)
    scheduler.add(Request("A", 1, 17, 2, 2))
    assert prefills(step(scheduler, 1)) == []
    assert scheduler.kv.pool.num_free == 20 - 10 - 4
    assert prefills(step(scheduler, 11)) == ([("A", 1)] if runs else [])


@pytest.mark.parametrize(("whole", "runs"), [(False, True), (True, False)])
def test_the_whole_rest_of_a_prompt_must_fit_where_part_of_its_kv_has_arrived(
    whole: bool, runs: bool
) -> None:
    """vLLM from 0.19: the rest of A, computed in chunks of 3, needs 4 blocks, of which 3 are free."""
    scheduler = machine(Store({"A": 4}), 7, max_num_batched_tokens=4, scheduler_reserve_full_isl=whole)
    scheduler.add(Request("A", 0, 20, 2, 2))
    assert scheduler.schedule(0) is None
    scheduler.add(Request("B", 1, 4, 20, 20))
    for now_ns in range(1, 10):
        step(scheduler, now_ns)
    assert scheduler.kv.pool.num_free == 3
    assert prefills(step(scheduler, 11)) == ([("A", 3)] if runs else [])


@pytest.mark.parametrize(("spares", "loads"), [(False, 1), (True, 0)])
def test_a_load_leaves_the_blocks_that_admitted_prompts_still_need(spares: bool, loads: int) -> None:
    """vLLM from 0.24: B, computed in chunks of 8, still needs 6 of 8 free blocks; the load of A takes 4."""
    store = Store({"A": 16})
    scheduler = machine(store, 12, long_prefill_token_threshold=8, loads_spare_prompts=spares)
    scheduler.add(Request("B", 0, 40, 2, 2))
    step(scheduler, 0)
    scheduler.add(Request("A", 1, 17, 2, 2))
    assert prefills(step(scheduler, 1)) == [("B", 8)]
    assert len(store.loads) == loads
