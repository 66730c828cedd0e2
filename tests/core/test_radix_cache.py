"""The radix cache at work in the scheduler, and what other engines got wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import Machine

from blis_py.core.config import SchedulerConfig
from blis_py.core.radix_kv import RadixKV
from blis_py.core.request import Request, Status
from blis_py.core.scheduler import Scheduler

both = pytest.mark.parametrize("cache", ["hash", "radix"])


@both
def test_a_full_hit_on_a_block_multiple_prompt_still_computes_a_token(cache: str) -> None:
    machine = Machine(10, cache)
    machine.serve("A", [("p", 8)])
    again = machine.serve("B", [("p", 8)])
    assert again.cached_tokens == 4
    assert machine.steps[-1].features.prefill_tokens == 4
    one_more = machine.serve("C", [("p", 8), ("q", 1)])
    assert one_more.cached_tokens == 8
    assert machine.steps[-1].features.prefill_tokens == 1


def test_blocks_are_shared_from_the_step_after_the_one_that_computes_them() -> None:
    machine = Machine(20)
    machine.add("A", [("p", 8)], prompt=9, output=3)
    early = machine.add("B", [("p", 8)], prompt=9, output=3)
    machine.step()
    late = machine.add("C", [("p", 8)], prompt=9, output=3)
    machine.step()
    assert (early.cached_tokens, late.cached_tokens) == (0, 8)
    # B's copies of the two blocks were given back, and its table names A's.
    assert machine.free == 20 - 2 - 3
    a, b, c = machine.scheduler.running
    assert a.block_table[:2] == b.block_table[:2] == c.block_table[:2]


def test_each_chunk_of_a_long_prompt_is_published_when_it_is_computed() -> None:
    machine = Machine(20, max_num_batched_tokens=8)
    long = machine.add("A", [("p", 24)], output=2)
    machine.step()
    assert (long.status, long.computed, long.published) == (Status.PREFILLING, 8, 2)
    assert (
        machine.scheduler.kv.cached_blocks(Request("B", 0, 24, block_keys=long.block_keys))
        == long.block_table
    )


@both
def test_an_answer_is_found_by_the_next_turn(cache: str) -> None:
    machine = Machine(20, cache)
    turn = [("system", 6), ("question", 5), ("answer", 9)]
    machine.serve("A", turn, prompt=11, output=9)
    follow_up = machine.serve("B", [*turn, ("more", 4)])
    # The last token of an answer is emitted and never computed: 19 are in the cache, 4 full blocks.
    assert follow_up.cached_tokens == 16


@both
def test_keys_of_an_answer_may_come_while_it_is_generated(cache: str) -> None:
    machine = Machine(20, cache)
    request = machine.add("A", [("p", 3)], output=14)
    while machine.scheduler.running or machine.scheduler.waiting:
        step = machine.scheduler.schedule(0)
        assert step is not None
        request.block_keys = machine.keys.keys([("p", 3), ("answer", step.features.decode_kv_tokens - 2)])
        machine.scheduler.finish(step)
        machine.scheduler.check()
    assert machine.serve("B", [("p", 3), ("answer", 14), ("q", 1)]).cached_tokens == 16


@both
def test_a_preempted_request_finds_its_prompt_and_its_answer(cache: str) -> None:
    machine = Machine(4, cache)
    a = machine.add("A", [("p", 4), ("answer of A", 8)], prompt=4, output=8)
    b = machine.add("B", [("q", 4), ("answer of B", 8)], prompt=4, output=8)
    machine.drain()
    # B gave way with 8 tokens computed; A took one of its two blocks.
    assert (a.preemptions, b.preemptions) == (0, 1)
    recomputed = [(request.id, tokens) for step in machine.steps[1:] for request, tokens in step.prefills]
    assert recomputed == [("B", 5)]


@both
def test_a_preempted_request_counts_its_cached_tokens_anew(cache: str) -> None:
    """A stale count would plan a negative number of tokens, or compute the cached ones again."""
    machine = Machine(9, cache)
    machine.serve("first", [("p", 8)])
    machine.add("A", [("p", 8), ("a", 4)], output=14)
    b = machine.add("B", [("p", 8), ("b", 4)], output=14)
    machine.drain()
    assert b.preemptions > 0
    again = [tokens for step in machine.steps for request, tokens in step.prefills if request is b]
    assert len(again) == 1 + b.preemptions
    assert all(tokens > 0 for tokens in again)
    assert again[1] < b.num_tokens


def test_what_a_preempted_request_recomputes_is_a_prefill_even_if_it_is_one_token() -> None:
    """Recognised by what is missing, not by whether it has emitted before."""
    machine = Machine(4)
    machine.add("A", [("p", 4), ("answer of A", 9)], prompt=4, output=9)
    b = machine.add("B", [("q", 4), ("answer of B", 4)], prompt=4, output=8)
    steps = []
    while machine.scheduler.running or machine.scheduler.waiting:
        steps.append(machine.step())
    resumed = next(step for step in steps[1:] if any(request is b for request, _ in step.prefills))
    assert resumed.features.prefill_seqs == 1
    assert resumed.features.emitted_rows == resumed.features.seqs
    assert b.generated == 8


def test_its_own_allocation_never_evicts_what_a_request_has_matched() -> None:
    machine = Machine(6)
    machine.serve("A", [("p", 16)])  # four blocks, unused
    machine.serve("B", [("q", 4)])
    hit = machine.serve("C", [("p", 16), ("r", 8)])  # needs all six: q has to go, p must not
    assert hit.cached_tokens == 16
    assert machine.serve("D", [("q", 4), ("x", 1)]).cached_tokens == 0


def test_cached_blocks_are_not_charged_but_count_as_needed_when_unreferenced() -> None:
    machine = Machine(4)
    machine.serve("A", [("p", 8)])
    machine.add("holds two", [], prompt=7, output=5)
    machine.step()
    head = machine.add("B", [("p", 8)], prompt=13)
    machine.step()
    assert head.scheduled_ns == -1  # two cached, two fresh: four, and two are free


def test_eviction_with_pages_of_many_tokens_keeps_whole_blocks() -> None:
    machine = Machine(5)
    machine.serve("A", [("p", 19)])  # four full blocks and a partial one
    assert machine.free == 5
    machine.serve("takes two", [], prompt=8)
    assert machine.serve("B", [("p", 19)]).cached_tokens == 12


def test_private_tokens_never_enter_the_tree() -> None:
    machine = Machine(10)
    machine.serve("A", [("p", 8)], prompt=20, output=9)
    kv = machine.scheduler.kv
    assert isinstance(kv, RadixKV)
    assert kv.tree.evictable_size() == 2


@both
def test_requests_with_other_extra_keys_share_nothing(cache: str) -> None:
    machine = Machine(20, cache)
    machine.serve("A", [("p", 8)], prompt=9, extra_key="adapter 1")
    hits = [
        machine.serve(name, [("p", 8)], prompt=9, extra_key=extra).cached_tokens
        for name, extra in (("B", "adapter 2"), ("C", None), ("D", "adapter 1"), ("E", "adapter 2"))
    ]
    assert hits == [0, 0, 8, 8]


class AlwaysOne(str):
    """A key with the same hash as every other."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 1


@both
def test_keys_that_collide_share_nothing(cache: str) -> None:
    scheduler = Scheduler(
        SchedulerConfig(num_kv_blocks=20, max_model_len=100, block_size=4, prefix_cache=cache)
    )
    requests = [
        Request(name, 0, 9, 1, 1, block_keys=[AlwaysOne(name + "1"), AlwaysOne(name + "2")])
        for name in ("a", "b", "a")
    ]
    for request in requests:
        scheduler.add(request)
        while (step := scheduler.schedule(0)) is not None:
            scheduler.finish(step)
        scheduler.check()
    assert [request.cached_tokens for request in requests] == [0, 0, 8]


def test_an_aborted_request_leaves_what_it_computed_and_holds_nothing() -> None:
    machine = Machine(20, max_num_batched_tokens=8)
    request = machine.add("A", [("p", 24)], output=2)
    machine.step()
    machine.scheduler.abort(request)
    machine.scheduler.check()
    assert machine.free == 20
    assert machine.serve("B", [("p", 24)], output=2).cached_tokens == 8


chains = st.lists(st.tuples(st.sampled_from("pqrs"), st.integers(1, 40)), min_size=1, max_size=25)


@settings(max_examples=40)
@given(chains, st.sampled_from([1, 4]))
def test_without_branches_radix_and_hash_find_the_same(prompts: list[tuple[str, int]], size: int) -> None:
    """Prompts that are longer or shorter beginnings of a few texts, one after the other."""
    found = []
    for cache in ("hash", "radix"):
        machine = Machine(200, cache, block_size=size)
        requests = [machine.serve(f"{i}", [(text, tokens)]) for i, (text, tokens) in enumerate(prompts)]
        found.append([request.cached_tokens for request in requests])
    assert found[0] == found[1]


@settings(max_examples=40)
@given(chains)
def test_without_branches_and_short_of_blocks_radix_finds_at_least_as_much(
    prompts: list[tuple[str, int]],
) -> None:
    """Both give up what was used longest ago; hash also keeps private tokens and second copies."""
    found = []
    for cache in ("hash", "radix"):
        machine = Machine(12, cache)
        requests = [machine.serve(f"{i}", [(text, tokens)]) for i, (text, tokens) in enumerate(prompts)]
        found.append([request.cached_tokens for request in requests])
    assert all(hash_ <= radix for hash_, radix in zip(*found, strict=True))
