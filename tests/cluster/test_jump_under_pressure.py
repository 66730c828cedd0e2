"""Jumps where they are hardest: too few blocks, prefixes that branch, evictions that reorder the queue."""

from __future__ import annotations

import random

import pytest
from cluster_runs import Row, Run, differences

from blis_py.core.config import SchedulerConfig
from blis_py.core.eviction import EVICTION_POLICIES
from blis_py.core.policies import CACHE_AWARE
from blis_py.metrics.invariants import check

CLASSES = ("critical", "standard", "batch")


def pressed(rng: random.Random, scheduler: str, cache: str) -> Run:
    """Up to 25 requests that share beginnings, in blocks for one or two of them."""
    block_size, blocks = rng.choice([1, 2, 4, 16]), rng.randint(6, 40)
    settings: dict[str, object] = {}
    if cache == "radix":
        settings["radix_eviction_policy"] = rng.choice(list(EVICTION_POLICIES))
    if scheduler in CACHE_AWARE:
        settings |= {
            "fairness_ms": rng.choice([None, None, 0.05, 0.3]),
            "fairness_tokens": rng.choice([None, None, 40]),
            "lpm_max_queue": rng.choice([128, 128, 4]),
            "in_batch_sharing_tokens": rng.choice([None, 1, 8]),
        }
    config = SchedulerConfig(
        num_kv_blocks=blocks,
        max_model_len=4096,
        scheduler=scheduler,
        prefix_cache=cache,
        preemption_policy=rng.choice(["fcfs", "priority"]),
        batch_former=rng.choice(["running-first", "running-first", "prefill-first"]),
        max_num_seqs=rng.choice([2, 8, 256]),
        max_num_batched_tokens=rng.choice([8, 32, 2048]),
        long_prefill_token_threshold=rng.choice([0, 0, 4]),
        block_size=block_size,
        **settings,  # type: ignore[arg-type]
    )
    late_us = rng.choice([1, 300])
    rows = [row(rng, blocks * block_size, block_size, late_us) for _ in range(rng.randint(5, 25))]
    return Run(rows, config, rng.choice(["constant", "linear"]))


def row(rng: random.Random, room: int, block_size: int, late_us: int) -> Row:
    prompt = rng.randint(1, max(room * 2 // 3, 2))
    output = rng.randint(1, max(min(room - prompt, room // 2), 1))
    runs: tuple[tuple[str, int], ...] = ()
    known = prompt + rng.choice([0, 0, output]) if rng.random() < 0.8 else 0  # maybe the answer too
    while known and len(runs) < 3:
        tokens = min(known, rng.choice([block_size, 2 * block_size, room // 4 + 1, known]))
        runs += ((rng.choice("xyz" if runs else "ab"), tokens),)
        known -= tokens
    return Row(
        arrival_us=rng.randint(0, late_us),
        prompt=prompt,
        output=output,
        limit=rng.choice([0, output]),
        slo_class=rng.choice(CLASSES),
        patience_us=rng.choice([-1, -1, -1, 400]),
        runs=runs,
    )


PAIRS = [("fcfs", "hash"), ("fcfs", "radix"), ("priority-fcfs", "radix"), ("sjf", "radix")]
PAIRS += [("lpm", "hash"), ("lpm", "radix"), ("hrrn", "hash"), ("hrrn", "radix"), ("dfs-weight", "radix")]


@pytest.mark.slow
@pytest.mark.parametrize(("scheduler", "cache"), PAIRS, ids=str)
def test_a_jump_equals_its_steps_where_blocks_are_short(scheduler: str, cache: str) -> None:
    preempted = found = 0
    for seed in range(60):
        run = pressed(random.Random(f"{scheduler} {cache} {seed}"), scheduler, cache)
        record = run.record()
        check(record)
        assert differences(record, run.record(single_step=True)) == [], f"seed {seed}"
        preempted += bool(record.preemptions.any())
        found += bool((record.cached_tokens > 0).any())
    assert preempted > 30
    assert found > 30


@pytest.mark.parametrize(("scheduler", "cache"), PAIRS, ids=str)
def test_the_same_run_again_gives_the_same_bytes(scheduler: str, cache: str) -> None:
    for seed in range(5):
        run = pressed(random.Random(seed), scheduler, cache)
        assert differences(run.record(), run.record()) == []
