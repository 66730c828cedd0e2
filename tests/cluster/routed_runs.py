"""Random clusters where jumps are hardest: routing reads prefix caches, reports are stale, KV is scarce."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from cluster_runs import Row, Run, on_ranks

from blis_py.cluster.routing.scorers import SCORERS
from blis_py.core.config import SchedulerConfig
from blis_py.core.policies import CACHE_AWARE
from blis_py.core.rank_choice import RANK_CHOICES

SCHEDULERS = ("fcfs", "fcfs", "sjf", "priority-fcfs", *CACHE_AWARE)
LATENCY_MODELS = ("constant", "linear", "masks", "scans")
DELAYS_NS = (0, 0, 20_000, 50_000, 400_000)
"""From a state that is always current to one that is several steps old."""


def routed(rng: Random) -> Run:
    """80 requests of three prefix groups on two or three instances with blocks for a few of them."""
    block_size, max_model_len = rng.choice([(4, 144), (4, 144), (1, 40), (16, 400)])
    config = SchedulerConfig(
        num_kv_blocks=max(rng.choice([36, 45, 60]), -(-max_model_len // block_size)),
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=rng.choice([3, 3, 8, 64]),
        max_num_batched_tokens=rng.choice([16, 2048, 2048]),
        async_scheduling=rng.random() < 0.5,
        **_scheduling(rng),
    )
    rows = [_row(rng, max_model_len, block_size, rng.choice([5, 20, 80])) for _ in range(80)]
    options = {
        "num_instances": rng.choice([2, 3]),
        "routing_policy": "weighted",
        "routing_scorers": _scorers(rng),
        "snapshot_refresh_ns": rng.choice(DELAYS_NS),
        "cache_delay_ns": rng.choice(DELAYS_NS),
        "routing_latency_ns": rng.choice([0, 0, 777]),
        "horizon_ns": rng.choice([None, None, None, 900_000]),
    }
    return Run(rows, config, rng.choice(LATENCY_MODELS), options, eos_share=rng.choice([0.0, 0.0, 0.5]))


def routed_on_ranks(rng: Random) -> Run:
    """The same on instances of two or three ranks each."""
    run = routed(rng)
    choice = rng.choice(sorted(RANK_CHOICES))
    return replace(run, config=on_ranks(run.config, rng.choice([2, 3]), rank_choice=choice))


def _scheduling(rng: Random) -> dict[str, Any]:
    scheduler = rng.choice(SCHEDULERS)
    settings: dict[str, Any] = {
        "scheduler": scheduler,
        "preemption_policy": rng.choice(["fcfs", "priority"]),
        "batch_former": rng.choice(["running-first", "running-first", "running-first", "prefill-first"]),
        "prefix_cache": "radix" if scheduler == "dfs-weight" else rng.choice(["hash", "hash", "radix"]),
    }
    if scheduler in CACHE_AWARE:
        settings["fairness_ms"] = rng.choice([None, 0.05])
        settings["in_batch_sharing_tokens"] = rng.choice([None, 8])
    return settings


def _scorers(rng: Random) -> dict[str, float]:
    others = rng.sample(sorted(set(SCORERS) - {"precise-prefix-cache"}), rng.choice([0, 0, 1, 2]))
    return {"precise-prefix-cache": 1.0, **{name: rng.choice([0.5, 1.0]) for name in others}}


def _row(rng: Random, max_model_len: int, block_size: int, every_us: int) -> Row:
    group, shared = rng.choice("abc"), block_size * rng.choice([2, 5, 10])
    prompt = min(shared + rng.randint(1, 20 * block_size), max_model_len * 3 // 4)
    output = 1 + min(int(rng.expovariate(1 / (6 * block_size))), max_model_len - prompt)
    return Row(
        arrival_us=rng.randint(0, 80 * every_us),
        prompt=prompt,
        output=output,
        limit=rng.choice([0, output]),
        slo_class=rng.choice(["critical", "standard", "batch"]),
        patience_us=rng.choice([-1, -1, -1, -1, 900]),
        runs=((group, min(shared, prompt)),),
    )
