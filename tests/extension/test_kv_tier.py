"""A KV store behind the caches of two instances, see `kv_tier`."""

from __future__ import annotations

from random import Random

import pytest
from kv_tier import Tier, simulation
from small_runs import US, random_requests, requests, same

from blis_py.core.kv_source import Supply
from blis_py.core.request import Request, Status
from blis_py.metrics.invariants import check


class Counting(Tier):
    """A tier that counts loads."""

    loads = 0

    def load(self, request: Request, computed_tokens: int, supply: Supply, now_ns: int) -> None:
        self.loads += 1
        super().load(request, computed_tokens, supply, now_ns)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_prefix_computed_here_is_loaded_there_while_others_pass(async_scheduling: bool) -> None:
    texts = [("s", 16), ("s", 16), ("", 0), ("", 0)]
    table, tier = requests([0, 50, 51, 52], [20, 20, 5, 5], [2, 2, 1, 1], texts), Tier()
    run = simulation(table, tier, async_scheduling=async_scheduling)
    seen = []

    def look(now_ns: int) -> None:
        instance = run.fleet.instances[1]
        waiting = [request.status for request in tier.loading]
        seen.append((instance.batch_size, instance.queue_depth(now_ns), waiting))

    run.call_at(55 * US, look)
    record = run.run()
    check(record)
    assert record.instance.tolist() == [0, 1, 0, 1], "in turn"
    # Request 1 finds nothing in the cache of instance 1; the tier has 4 blocks, there at 58 us. Request
    # 3 passes it, 52 to 67; then the last 4 tokens of its prompt take 14 us, and its second token 10 us.
    assert seen == [(1, 1, [Status.WAITING_FOR_KV])]
    assert (record.first_token_ns // US).tolist() == [30, 81, 66, 67]
    assert (record.finish_ns // US).tolist() == [40, 91, 66, 67]
    assert record.cached_tokens.tolist() == [0, 16, 0, 0]
    assert [one.prefill_tokens for one in record.instances] == [20 + 5, 4 + 5]


def test_a_prefix_that_is_still_being_computed_is_not_in_the_tier() -> None:
    table = requests([0, 5], [20, 20], [2, 2], [("s", 16)] * 2)
    assert simulation(table, Tier()).run().cached_tokens.tolist() == [0, 0]


def test_an_adapter_of_its_own_finds_nothing() -> None:
    table = requests([0, 50, 100], [20] * 3, [2] * 3, [("s", 16)] * 3, ["x", "y", "y"])
    assert simulation(table, Tier()).run().cached_tokens.tolist() == [0, 0, 16]


@pytest.mark.slow
@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("prefix_cache", ["hash", "radix"])
@pytest.mark.parametrize("blocks", [32, 1000])
def test_a_jump_is_its_steps(async_scheduling: bool, prefix_cache: str, blocks: int) -> None:
    rng, loads = Random(f"{blocks} {prefix_cache}"), 0
    for _ in range(6):
        table = random_requests(rng)
        settings = {"async_scheduling": async_scheduling, "prefix_cache": prefix_cache}
        tiers = Counting(), Counting()
        jump, single = (
            simulation(table, tier, single, num_kv_blocks=blocks, **settings).run()
            for tier, single in zip(tiers, (False, True), strict=True)
        )
        same(jump, single)
        assert [tier.loading for tier in tiers] == [{}, {}]
        assert tiers[0].loads == tiers[1].loads
        loads += tiers[0].loads
    assert loads > 0
