"""Runs with rules of vLLM's releases: passing alike steps in one go changes nothing."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from cluster_runs import Row, differences, table_of

from blis_py.cluster.simulation import simulate
from blis_py.cluster.topology import Cluster
from blis_py.core.config import SchedulerConfig
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts

PRICES = LinearCoefficients(gpu=LinearCosts(step=100_000, prefill_tokens=100, decode_seqs=7_000))


def config_of(rng: Random, ranks: int) -> SchedulerConfig:
    size = rng.choice([2, 4, 16])
    settings: dict[str, Any] = {
        "num_kv_blocks": ranks * -(-rng.choice([150, 220, 400]) // size),
        "block_size": size,
        "max_model_len": 130,
        "max_num_seqs": ranks * rng.choice([3, 8, 30]),
        "max_num_batched_tokens": ranks * rng.choice([8, 33, 512]),
        "ranks": ranks,
        "preemption_policy": rng.choice(["fcfs", "priority"]),
        "async_scheduling": rng.random() < 0.6,
        "scheduler_reserve_full_isl": rng.random() < 0.7,
        "loads_spare_prompts": rng.random() < 0.5,
        "watermark": rng.choice([0, 0, 0.05, 0.3]),
        "prefill_schedule_interval": rng.choice([1, 2, 5, 12]),
        "prefill_interval_needs_ranks": rng.random() < 0.3,
        "prefill_interval_holds_last_tokens": rng.random() < 0.3,
        "rank_choice": rng.choice(["least-queued", "least-queued-in-turn", "least-loaded"]),
        "long_prefill_token_threshold": rng.choice([0, 5, 40]),
        "long_prefill_token_threshold_adaptive": rng.random() < 0.5,
        "lone_prefill_has_no_threshold": rng.random() < 0.5,
        "reuse_unhashed_first": rng.random() < 0.7,
        "self_preemption_ends_step": rng.random() < 0.5,
        "blocks_await_outcome": rng.random() < 0.7,
        "preemption_skips_next": rng.random() < 0.5,
    }
    return SchedulerConfig(**settings)


def rows(rng: Random) -> list[Row]:
    at_us, found = 0, []
    for number in range(50):
        at_us += rng.choice([0, 50, 400, 3000])
        prompt, output = rng.randint(1, 80), rng.randint(1, 40)
        shared = rng.randrange(prompt)
        runs = ((rng.choice("ab"), shared), (f"own {number}", prompt + output - shared))
        limit = rng.choice([output, output + 5])
        found.append(Row(at_us, prompt, output, limit, rng.choice(["critical", "batch"]), "a", -1, runs))
    return found


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("seed", range(40))
def test_jumps_equal_single_steps(seed: int, ranks: int) -> None:
    rng = Random(f"{seed} {ranks}")
    config, requests = config_of(rng, ranks), rows(rng)
    cluster = Cluster.of(scheduler=config, latency=Linear(PRICES))
    jumps, steps = (simulate(table_of(requests), cluster, single_step=single) for single in (False, True))
    assert not differences(jumps, steps)
