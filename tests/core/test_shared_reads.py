"""What a step reads again because sequences share pages. (The naive scheduler compares every step.)"""

from __future__ import annotations

import pytest

from blis_py.core.config import SchedulerConfig
from blis_py.core.kv import KeySpace
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler


def scheduler(**settings: object) -> Scheduler:
    return Scheduler(SchedulerConfig(num_kv_blocks=100, max_model_len=512, **settings))  # type: ignore[arg-type]


def request(name: str, output: int, shared: int = 64) -> Request:
    keys = KeySpace(16).keys([("system", shared)]) if shared else []
    return Request(name, 0, 70, output, output, block_keys=keys)


def again(core: Scheduler) -> list[int]:
    """Of every step until all is done, what is read again."""
    found = []
    while step := core.schedule(0):
        found.append(step.features.shared_kv_tokens)
        core.finish(step)
        core.check()
    return found


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_each_page_counts_once_for_each_sequence_but_one(cache: str) -> None:
    """Three begin with the same four pages; with a radix tree they share when the first has computed them."""
    core = scheduler(prefix_cache=cache)
    core.add(request("first", 1))
    assert again(core) == [0]
    for name, output in (("long", 6), ("short", 3), ("middle", 5)):
        core.add(request(name, output))
    assert again(core) == [128, 128, 128, 64, 64, 0]


def test_a_request_that_shares_nothing_or_has_no_cache_reads_nothing_again() -> None:
    for core, shared in ((scheduler(), 0), (scheduler(prefix_cache="none"), 64)):
        for name in "ab":
            core.add(request(name, 3, shared))
        assert again(core) == [0, 0, 0]


def test_alike_steps_read_the_same_again() -> None:
    core = scheduler()
    for name in "ab":
        core.add(request(name, 9))
    step = core.schedule(0)
    assert step is not None
    core.finish(step)
    step = core.schedule(0)
    assert step is not None
    assert step.features.shared_kv_tokens == step.features.after(5).shared_kv_tokens == 64
