"""Prompts of block diffusion in the prefix cache."""

from __future__ import annotations

import pytest
from diffusion_runs import BLOCK, Driver, keyed, scheduled, scheduler

from blis_py.core.diffusion_request import BatchOutcome
from blis_py.core.token_keys import token_keys


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_a_cached_prompt_is_computed_from_its_first_unknown_block(cache: str) -> None:
    driver = Driver(scheduler(prefix_cache=cache), {})
    ids = list(range(70))
    driver.scheduler.add(keyed("one", ids))
    driver.drain()
    twin = keyed("two", ids)
    driver.scheduler.add(twin)
    batch = driver.begin()
    assert batch is not None
    assert not batch.prefills
    assert batch.denoise == [twin]
    assert twin.cached_tokens == 64
    driver.end(batch)
    driver.drain()


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_a_chunk_of_a_prompt_is_found_while_the_rest_of_it_is_computed(cache: str) -> None:
    settings = {"max_num_batched_tokens": 256, "long_prefill_token_threshold": 2 * BLOCK}
    core = scheduler(prefix_cache=cache, **settings)
    ids = list(range(5 * BLOCK))
    one, two = keyed("one", ids), keyed("two", ids)
    core.add(one)
    core.finish(scheduled(core), BatchOutcome())
    core.add(two)
    scheduled(core)
    assert two.cached_tokens == (4 if cache == "hash" else 2) * BLOCK  # by hash what is planned is found, too


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_only_committed_blocks_are_found_by_others(cache: str) -> None:
    core = scheduler(prefix_cache=cache)
    prompt, block = list(range(32)), list(range(100, 132))
    keys = token_keys(prompt + block, BLOCK)
    for committed in (False, True):
        one = keyed("one", prompt, output=64)
        core.add(one)
        batch = scheduled(core)
        while not batch.denoise:
            core.finish(batch, BatchOutcome())
            batch = scheduled(core)
        if committed:
            core.finish(batch, BatchOutcome([BLOCK], keys={one: keys[1:]}))
        else:
            core.finish(batch, BatchOutcome([0]))
        core.abort(one)
        follower = keyed("two", [*prompt, *block, 5])
        core.add(follower)
        scheduled(core)
        assert follower.cached_tokens == (64 if committed else 32)
        core.abort(follower)
        core.check()
