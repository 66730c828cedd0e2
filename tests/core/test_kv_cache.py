"""The prefix cache: what is shared, what it costs, what is reused first."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_py.core.config import SchedulerConfig
from blis_py.core.hash_kv import HashKV
from blis_py.core.kv import KeySpace
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step

Runs = list[tuple[str, int]]

runs_strategy = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 6)), max_size=4)


def tokens_of(runs: Runs) -> list[Hashable]:
    """A token is named by its segment, where in the prompt that run began, and its place in it."""
    return [(segment, i) for segment, length in runs for i in range(length)]


@settings(max_examples=100)
@given(st.lists(runs_strategy, min_size=2, max_size=6), st.integers(1, 5))
def test_block_keys_are_equal_exactly_where_all_tokens_so_far_are(prompts: list[Runs], size: int) -> None:
    space = KeySpace(size)
    content_of: dict[Hashable, tuple[Hashable, ...]] = {}
    key_of: dict[tuple[Hashable, ...], Hashable] = {}
    for runs in prompts:
        keys, tokens = space.keys(runs), tokens_of(runs)
        assert len(keys) == len(tokens) // size
        for i, key in enumerate(keys):
            content = tuple(tokens[: (i + 1) * size])
            assert content_of.setdefault(key, content) == content
            assert key_of.setdefault(content, key) == key


class Machine:
    """A scheduler with blocks of 4 tokens, and short calls for its operations."""

    def __init__(self, blocks: int, **settings: object) -> None:
        self.scheduler = Scheduler(
            SchedulerConfig(num_kv_blocks=blocks, max_model_len=1000, block_size=4, **settings)  # type: ignore[arg-type]
        )
        self.keys = KeySpace(4)
        self.free = lambda: self.scheduler.kv.pool.num_free

    def add(self, name: str, runs: Runs, prompt: int, output: int = 1) -> Request:
        request = Request(name, 0, prompt, output, output, block_keys=self.keys.keys(runs))
        assert self.scheduler.add(request) is None
        return request

    def step(self) -> Step:
        step = self.scheduler.schedule(0)
        assert step is not None
        self.scheduler.finish(step)
        return step

    def drain(self) -> None:
        while (step := self.scheduler.schedule(0)) is not None:
            self.scheduler.finish(step)
            self.scheduler.check()


def test_a_released_prefix_is_found_again() -> None:
    machine = Machine(10)
    machine.add("A", [("p", 8)], 10)
    machine.drain()
    again = machine.add("B", [("p", 8)], 11)
    step = machine.step()
    assert again.cached_tokens == 8
    assert step.features.prefill_tokens == 3
    assert step.features.prefill_kv_tokens == 8


def test_the_last_token_of_a_fully_cached_prompt_is_computed_with_its_block() -> None:
    machine = Machine(10)
    machine.add("A", [("p", 8)], 8)
    machine.drain()
    again = machine.add("B", [("p", 8)], 8)
    step = machine.step()
    assert (again.cached_tokens, step.features.prefill_tokens) == (4, 4)


def test_requests_admitted_in_one_step_share_what_the_first_is_about_to_compute() -> None:
    machine = Machine(10)
    machine.add("A", [("p", 8)], 9, output=2)
    machine.add("B", [("p", 8)], 9, output=2)
    step = machine.step()
    assert [n for _, n in step.prefills] == [9, 1]
    assert machine.free() == 10 - 2 - 1 - 1
    machine.scheduler.check()


def test_a_shared_block_is_free_only_when_its_last_user_leaves() -> None:
    machine = Machine(10)
    machine.add("A", [("p", 8)], 9, output=1)
    machine.add("B", [("p", 8)], 9, output=3)
    machine.step()
    assert machine.free() == 10 - 3
    machine.drain()
    assert machine.free() == 10


def test_different_prefixes_share_nothing_and_equal_beginnings_what_is_equal() -> None:
    machine = Machine(20)
    machine.add("A", [("p", 8), ("q", 4)], 13)
    machine.drain()
    other = machine.add("B", [("r", 8)], 13)
    longer = machine.add("C", [("p", 8), ("r", 4)], 13)
    machine.drain()
    assert (other.cached_tokens, longer.cached_tokens) == (0, 8)


def test_the_tail_of_a_released_prompt_is_reused_before_its_beginning() -> None:
    machine = Machine(4)
    machine.add("A", [("p", 16)], 16)
    machine.drain()
    machine.add("takes one block", [], 4)
    machine.drain()
    again = machine.add("B", [("p", 16)], 16)
    machine.drain()
    assert again.cached_tokens == 12


def test_what_was_released_first_is_reused_first() -> None:
    machine = Machine(4)
    machine.add("A", [("p", 8)], 8)
    machine.drain()
    machine.add("B", [("q", 8)], 8)
    machine.drain()
    machine.add("takes two blocks", [], 8)
    machine.drain()
    # B's are the older ones in memory, but A's were released first.
    assert machine.add("D", [("q", 8)], 7).cached_tokens == -1
    machine.drain()
    machine.add("E", [("p", 8)], 9)
    machine.step()
    counters = machine.scheduler.counters
    assert counters.prefix_hit_tokens == 4  # D found one block of q, E nothing of p


def test_a_hit_takes_a_block_out_of_the_reuse_order() -> None:
    machine = Machine(4)
    machine.add("A", [("p", 8)], 8)
    machine.drain()  # free: two never used, then A's second block, then its first
    machine.add("B", [("p", 8)], 5)  # holds and releases A's first block, and a fresh one
    machine.drain()
    machine.add("takes three blocks", [], 12)
    machine.drain()
    last = machine.add("D", [("p", 8)], 5)
    machine.drain()
    assert last.cached_tokens == 4


def test_cached_free_blocks_count_as_needed_when_a_head_is_admitted() -> None:
    machine = Machine(4)
    machine.add("A", [("p", 8)], 8)
    machine.drain()
    machine.add("holds two", [], 7, output=5)
    machine.step()
    head = machine.add("B", [("p", 8)], 13)  # two cached and free, two fresh: four, but two are free
    machine.step()
    assert head.scheduled_ns == -1


def test_without_prefix_caching_nothing_is_found() -> None:
    machine = Machine(10, enable_prefix_caching=False)
    machine.add("A", [("p", 8)], 10)
    machine.drain()
    again = machine.add("B", [("p", 8)], 10)
    machine.drain()
    assert again.cached_tokens == 0


def test_without_prefix_caching_no_block_is_registered_as_cached() -> None:
    kv = HashKV(10, 4, prefix_caching=False)
    changes = kv.follow()
    request = Request("A", 0, 10, 1, 1, block_keys=["first", "second"])
    assert kv.admit(request, [], 0, 8)
    request.computed = 8
    kv.publish_supplied(request, 0)
    kv.publish(request)
    assert not changes


def test_content_that_two_blocks_hold_outlives_the_first_of_them() -> None:
    machine = Machine(4)
    machine.add("A", [("p", 8)], 8)
    machine.drain()
    machine.add("B", [("p", 8)], 8, output=9)  # shares the first block, computes the second again
    machine.step()
    machine.add("takes the rest", [], 8)  # A's second block among it
    machine.step()
    late = machine.add("C", [("p", 8)], 9)
    machine.drain()
    assert late.cached_tokens == 8


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_unreferenced_blocks_can_be_forgotten_and_referenced_ones_stay(cache: str) -> None:
    config = SchedulerConfig(num_kv_blocks=20, max_model_len=100, block_size=4, prefix_cache=cache)
    scheduler = Scheduler(config)

    def request(name: str, output: int, keys: str) -> Request:
        return Request(name, 0, 13, output, output, block_keys=list(keys))

    scheduler.add(request("gone", 1, "abc"))
    scheduler.add(request("here", 9, "xyz"))
    step = scheduler.schedule(0)
    assert step is not None
    scheduler.finish(step)
    scheduler.kv.forget_unused()
    scheduler.check()
    for name, keys, cached in (("again", "abc", 0), ("shares", "xyz", 12)):
        scheduler.add(new := request(name, 1, keys))
        step = scheduler.schedule(0)
        assert step is not None
        scheduler.finish(step)
        assert new.cached_tokens == cached
    while (step := scheduler.schedule(0)) is not None:
        scheduler.finish(step)
    scheduler.check()
    assert scheduler.kv.pool.num_free == 20
