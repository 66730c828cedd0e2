"""Requests placed with computed prompts, with which measurements of steps begin."""

from __future__ import annotations

from dataclasses import replace

import pytest
from diffusion_runs import BLOCK, Driver
from diffusion_runs import scheduler as diffusion_scheduler

from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion_request import DiffusionRequest
from blis_py.core.features import StepFeatures
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler

CONFIG = SchedulerConfig(num_kv_blocks=64, max_model_len=400, max_num_seqs=4, max_num_batched_tokens=400)
PROMPTS = (1, 16, 17, 100)


def steps(scheduler: Scheduler, count: int) -> list[StepFeatures]:
    """Takes so many steps; what they consisted of."""
    found = []
    for _ in range(count):
        step = scheduler.schedule(0)
        assert step is not None
        found.append(step.features)
        scheduler.finish(step)
        scheduler.check()
    return found


@pytest.mark.parametrize("cache", ["hash", "radix", "none"])
def test_a_placed_request_goes_on_as_one_that_computed_its_prompt(cache: str) -> None:
    config = replace(CONFIG, prefix_cache=cache)
    computed, placed = Scheduler(config, track_longest=True), Scheduler(config, track_longest=True)
    for number, prompt in enumerate(PROMPTS):
        computed.add(Request(f"r{number}", 0, prompt))
        placed.place(Request(f"r{number}", 0, prompt), prompt - 1)
    first = steps(computed, 1)[0], steps(placed, 1)[0]
    assert first[0].prefill_tokens == sum(PROMPTS)
    assert (first[1].prefill_tokens, first[1].prefill_kv_tokens) == (4, sum(PROMPTS) - 4)
    for one, other in zip(steps(computed, 40), steps(placed, 40), strict=True):
        assert one == other
    assert computed.kv.pool.num_free == placed.kv.pool.num_free


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_what_a_placed_request_leaves_behind_can_be_found(cache: str) -> None:
    scheduler = Scheduler(replace(CONFIG, prefix_cache=cache))
    before = Request("before", 0, 101, block_keys=list(range(6)))
    scheduler.place(before, 100)
    scheduler.abort(before)
    scheduler.check()
    assert scheduler.kv.pool.num_free == 64
    scheduler.add(Request("after", 0, 110, block_keys=list(range(6))))
    (features,) = steps(scheduler, 1)
    assert (features.prefill_kv_tokens, features.prefill_tokens) == (96, 14)


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_what_a_placed_request_has_in_the_cache_is_shared_from_the_beginning(cache: str) -> None:
    scheduler = Scheduler(replace(CONFIG, prefix_cache=cache))
    scheduler.place(Request("placed", 0, 101, block_keys=list(range(6))), 100)
    scheduler.add(Request("other", 0, 110, block_keys=list(range(6))))
    (features,) = steps(scheduler, 1)
    assert (features.prefill_kv_tokens, features.prefill_tokens) == (100 + 96, 1 + 14)


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_a_placed_request_takes_only_the_blocks_that_are_not_shared(cache: str) -> None:
    """Of 7 blocks of 16 tokens 6 are full and found again; a third has 2 more of its own, beside the last."""
    scheduler = Scheduler(replace(CONFIG, prefix_cache=cache))
    for name, prompt, keys, free in (
        ("first", 101, range(6), 57),
        ("the same", 101, range(6), 56),
        ("longer", 133, range(8), 53),
    ):
        scheduler.place(Request(name, 0, prompt, block_keys=list(keys)), prompt - 1)
        assert scheduler.kv.pool.num_free == free, name
        scheduler.check()


def test_where_there_is_no_room_nothing_is_placed() -> None:
    scheduler = Scheduler(CONFIG)
    for number in range(3):
        scheduler.place(Request(f"r{number}", 0, 300), 299)
    with pytest.raises(RuntimeError, match="no room"):
        scheduler.place(Request("many blocks", 0, 300), 299)
    scheduler.place(Request("fits", 0, 10), 9)
    with pytest.raises(RuntimeError, match="no room"):
        scheduler.place(Request("fifth", 0, 1), 0)
    scheduler.check()
    assert [request.id for request in scheduler.running] == ["r0", "r1", "r2", "fits"]


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_a_placed_diffusion_request_denoises_the_block_behind_its_context(cache: str) -> None:
    scheduler = diffusion_scheduler(fdfo=True, prefix_cache=cache)
    driver = Driver(scheduler, {"placed": (5,)})
    keys = [b"a", b"b"] if scheduler.config.block_size == BLOCK else []
    request = DiffusionRequest("placed", 0, 2 * BLOCK + 3, max_tokens=10, block_keys=keys)
    scheduler.place(request, 2 * BLOCK)
    scheduler.check()
    driver.drain()
    assert not any(batch.prefills for batch in driver.history)
    first = driver.history[0].features
    assert (first.denoise_blocks, first.prefill_kv_tokens) == (1, 2 * BLOCK)
    assert request.generated == 10
    assert scheduler.kv.pool.num_free == scheduler.kv.pool.total


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_others_share_the_context_of_a_placed_diffusion_request_from_the_beginning(cache: str) -> None:
    scheduler = diffusion_scheduler(fdfo=True, prefix_cache=cache)
    scheduler.place(DiffusionRequest("placed", 0, 2 * BLOCK, block_keys=[b"a", b"b"]), 2 * BLOCK)
    scheduler.add(DiffusionRequest("other", 0, 3 * BLOCK, block_keys=[b"a", b"b", b"c"]))
    batch = scheduler.schedule(0)
    assert batch is not None
    (prefill,) = batch.prefills
    assert (prefill[0].cached_tokens, prefill[1]) == (2 * BLOCK, BLOCK)


def test_a_placed_diffusion_request_first_computes_what_is_missing_of_its_prompt() -> None:
    scheduler = diffusion_scheduler(fdfo=True)
    driver = Driver(scheduler, {"placed": (2,)})
    scheduler.place(DiffusionRequest("placed", 0, 3 * BLOCK, max_tokens=5), BLOCK)
    driver.drain()
    (prefill,) = [batch for batch in driver.history if batch.prefills]
    assert prefill.prefills[0][1] == 2 * BLOCK


def test_where_no_slot_is_free_no_block_is_placed() -> None:
    scheduler = diffusion_scheduler(max_num_seqs=1)
    scheduler.place(DiffusionRequest("first", 0, BLOCK), BLOCK)
    with pytest.raises(RuntimeError, match="no room"):
        scheduler.place(DiffusionRequest("second", 0, BLOCK), BLOCK)
    scheduler.check()
