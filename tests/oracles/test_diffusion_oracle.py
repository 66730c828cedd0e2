"""Simulated instances of block diffusion beside a naive one: every block at the same nanosecond."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_diffusion import BLOCK, Dream, NaiveDiffusion
from real_parts import simulated

from blis_py.cluster.instances.diffusion import BlockDiffusion
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import Labels, RequestTable

STEP_NS, TOKEN_NS = 10_000, 10
PRICES = LinearCoefficients(gpu=LinearCosts(step=STEP_NS, prefill_tokens=TOKEN_NS))
CLASSES = {0: "critical", 1: "standard", 5: "batch"}
Modes = dict[str, Any]


def price(tokens: int) -> int:
    return STEP_NS + TOKEN_NS * tokens


def a_case(seed: int) -> tuple[Modes, Modes, list[Dream]]:
    """Settings of the instance, of its execution, and requests."""
    rng = Random(seed)
    limits = {
        "num_kv_blocks": rng.randint(8, 24),
        "max_num_seqs": rng.randint(1, 6),
        "max_num_batched_tokens": rng.choice([192, 224, 2048]),
        "preemption_policy": rng.choice(["fcfs", "priority"]),
        "scheduler": rng.choice(["fcfs", "priority-fcfs"]),
    }
    modes = {"fdfo": rng.random() < 0.6, "reloop": rng.random() < 0.6}
    dreams, now_ns = [], 0
    for row in range(rng.randint(1, 12)):
        now_ns += rng.choice([0, rng.randrange(5 * STEP_NS), rng.randrange(40 * STEP_NS)])
        prompt, answer = rng.choice([0, 1, 31, 32, 33, 64, rng.randint(0, 100)]), rng.randint(1, 90)
        blocks = -(-(prompt % BLOCK + answer) // BLOCK)
        rounds = [rng.randint(1, 9) for _ in range(blocks)]
        dreams.append(Dream(row, now_ns, prompt or 1, answer, rounds, rng.choice([0, 1, 5])))
        if not prompt:
            dreams[-1].rounds.append(2)
    return limits, modes, dreams


def served(limits: Modes, modes: Modes, dreams: list[Dream], **options: Any) -> RunRecord:
    def column(name: str) -> np.ndarray:
        return np.array([getattr(one, name) for one in dreams], dtype=np.int64)

    table = RequestTable.build(
        column("arrival_ns"),
        column("prompt"),
        column("answer"),
        slo_class=Labels.of([CLASSES[one.priority] for one in dreams]),
    )
    config = SchedulerConfig(max_model_len=1024, block_size=BLOCK, enable_prefix_caching=False, **limits)
    blocks = BlockDiffusion([one.rounds for one in dreams], DiffusionConfig(**modes))
    return simulated(table, scheduler=config, latency=Linear(PRICES), kind=blocks, **options)


def assert_alike(seed: int, **options: Any) -> list[Dream]:
    limits, modes, dreams = a_case(seed)
    record = served(limits, modes, dreams, **options)
    naive = NaiveDiffusion(
        limits["num_kv_blocks"],
        limits["max_num_seqs"],
        limits["max_num_batched_tokens"],
        modes["fdfo"],
        limits["preemption_policy"],
        price,
    )
    naive.serve(dreams, limits["scheduler"] == "priority-fcfs")
    assert record.preemptions.tolist() == [one.preemptions for one in dreams]
    assert record.first_token_ns.tolist() == [one.emitted_ns[0] for one in dreams]
    assert record.finish_ns.tolist() == [one.emitted_ns[-1] for one in dreams]
    assert naive.free == limits["num_kv_blocks"]
    return dreams


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(0, 2**32), st.booleans())
def test_every_block_becomes_final_when_it_does_in_the_naive_one(seed: int, single: bool) -> None:
    assert_alike(seed, single_step=single)


def test_the_cases_contain_what_makes_it_hard() -> None:
    runs = [assert_alike(seed) for seed in range(60)]
    assert sum(any(one.preemptions for one in run) for run in runs) > 5
    assert sum(any(len(one.emitted_ns) > 2 for one in run) for run in runs) > 20
