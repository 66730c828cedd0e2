"""Simulated block diffusion: the textbook example, jumps that change nothing, published speed-ups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from diffusion_alone import LoneRun, run_alone
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_py.cluster.instances.diffusion import DiffusionCosts
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.core.diffusion_request import DiffusionRequest
from blis_py.core.request import FinishReason
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.workload.diffusion import draw_rounds
from blis_py.workload.diffusion_steps import (
    DenoiseSteps,
    MeanAndSpread,
)

MS = 1_000_000
FLAT = Linear(LinearCoefficients(LinearCosts(step=MS)))
DETAILED = Linear(
    LinearCoefficients(LinearCosts(step=7e5, prefill_tokens=900, prefill_pairs=0.7, emitted_rows=333))
)
MODES = set(DiffusionConfig.__dataclass_fields__)


def simulate(
    requests: list[DiffusionRequest],
    rounds: Any,
    *,
    latency: Linear = FLAT,
    costs: DiffusionCosts | None = None,
    single_step: bool = False,
    **given: Any,
) -> LoneRun:
    modes = {name: given.pop(name) for name in list(given) if name in MODES}
    defaults = {"num_kv_blocks": 4096, "max_model_len": 4096, "block_size": 32, "max_num_seqs": 3}
    config = SchedulerConfig(**{**defaults, **given})
    run = run_alone(
        requests,
        rounds,
        scheduler=config,
        latency=latency,
        diffusion=DiffusionConfig(**modes),
        costs=costs,
        single_step=single_step,
    )
    run.scheduler.check()
    assert run.scheduler.kv.pool.num_free == run.scheduler.kv.pool.total
    assert len(run.batches) == run.counters.batches
    assert [row.first_round for row in run.batches] == np.cumsum([0, *rounds_of(run)])[:-1].tolist()
    assert sum(rounds_of(run)) == run.counters.rounds
    assert sum(len(row.committed) for row in run.batches) == sum(map(len, run.commit_ns.values()))
    return run


def rounds_of(run: LoneRun) -> list[int]:
    return [row.rounds for row in run.batches]


def request(row: int, prompt: int = 0, output: int = 32, arrival_ns: int = 0) -> DiffusionRequest:
    return DiffusionRequest("ABCDE"[row] if row < 5 else str(row), arrival_ns, prompt, output, row=row)


@pytest.mark.parametrize(
    ("fdfo", "ends_ms", "waste"), [(True, [3, 8, 2, 6, 7], 0), (False, [8, 8, 8, 12, 12], 11)]
)
def test_the_example_of_blocks_with_3_8_and_2_steps(fdfo: bool, ends_ms: list[int], waste: int) -> None:
    sent = [request(row) for row in range(5)]
    run = simulate(sent, [[3], [8], [2], [4], [4]], fdfo=fdfo)
    assert [run.commit_ns[each][0] // MS for each in sent] == ends_ms
    assert [each.scheduled_ns // MS for each in sent] == [0, 0, 0, *((2, 3) if fdfo else (8, 8))]
    assert run.counters.idle_block_rounds == waste


def random_requests(seed: int, count: int = 25) -> list[DiffusionRequest]:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.integers(0, 9 * MS, count))
    prompts, outputs = rng.choice([0, 1, 31, 32, 33, 200], count), rng.integers(1, 120, count)
    return [
        request(row, int(p), int(o), int(t))
        for row, (p, o, t) in enumerate(zip(prompts, outputs, arrivals, strict=True))
    ]


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    fdfo=st.booleans(),
    reloop=st.booleans(),
    slots=st.integers(1, 6),
    pages=st.integers(10, 40),
)
def test_passing_alike_rounds_in_one_go_gives_what_single_rounds_give(
    seed: int, fdfo: bool, reloop: bool, slots: int, pages: int
) -> None:
    runs, scheduled_ns = [], []
    for single_step in (False, True):
        sent = random_requests(seed)
        rounds = draw_rounds(sent, MeanAndSpread(6, 0.5), block_tokens=32, seed=seed)
        settings = {"fdfo": fdfo, "reloop": reloop, "max_num_seqs": slots, "num_kv_blocks": pages}
        runs.append(simulate(sent, rounds, latency=DETAILED, single_step=single_step, **settings))
        scheduled_ns.append([each.scheduled_ns for each in sent])
    jumped, stepped = runs
    assert list(jumped.commit_ns.values()) == list(stepped.commit_ns.values())
    assert [r.id for r in jumped.commit_ns] == [r.id for r in stepped.commit_ns]
    assert jumped.counters.rounds == stepped.counters.rounds
    assert scheduled_ns[0] == scheduled_ns[1]


def speed_up(slots: int, steps: DenoiseSteps, prompt: int = 0, output: int = 32, count: int = 600) -> float:
    """Synchronous rounds over FDFO rounds, with work for every slot to the end but for the last blocks."""
    rounds = {}
    for fdfo in (True, False):
        sent = [request(row, prompt, output) for row in range(count)]
        drawn = draw_rounds(sent, steps, block_tokens=32, seed=3)
        run = simulate(sent, drawn, fdfo=fdfo, max_num_seqs=slots, num_kv_blocks=16 * slots)
        rounds[fdfo] = run.counters.rounds
    return rounds[False] / rounds[True]


@pytest.mark.parametrize(("slots", "published"), [(4, 1.30), (16, 1.45)])
@pytest.mark.parametrize("cv", [0.25, 0.30])
def test_the_published_speed_ups_follow_from_the_spread_of_step_counts(
    slots: int, published: float, cv: float
) -> None:
    assert speed_up(slots, MeanAndSpread(12.5, cv)) == pytest.approx(published, rel=0.1)


def test_without_spread_both_modes_take_the_same_rounds() -> None:
    assert speed_up(4, MeanAndSpread(12, 0)) == 1.0


def test_switches_cost_what_they_save() -> None:
    costs = DiffusionCosts(schedule_ns=100_000, allocator_call_ns=10_000)
    times = {}
    for switched in ({}, {"reloop": False}, {"reloop": False, "reuse_in_place": False}):
        sent = [request(row) for row in range(12)]
        rounds = draw_rounds(sent, MeanAndSpread(12.5, 0.3), block_tokens=32, seed=1)
        run = simulate(sent, rounds, costs=costs, **switched)
        counters = run.counters
        times[len(switched)] = max(max(ends_ns) for ends_ns in run.commit_ns.values())
        assert times[len(switched)] <= (
            counters.rounds * MS
            + counters.batches * costs.schedule_ns
            + counters.allocator_calls * costs.allocator_call_ns
        )
        assert (counters.unfinished_allocator_calls > 0) == (len(switched) == 2)
    assert times[0] < times[1] < times[2]


def test_blocks_and_waste_of_one_request_by_hand() -> None:
    sent = [request(0, prompt=40, output=50, arrival_ns=2 * MS)]
    run = simulate(sent, [[4, 6]])
    assert run.commit_ns[sent[0]] == [7 * MS, 13 * MS]  # one round of prompt, then the blocks
    assert run.counters.steps_per_block == 5
    assert run.counters.committed_tokens_per_step == 5
    assert run.counters.wasted_tokens == 24 + 32 - 50


def test_every_request_ends_in_one_bucket() -> None:
    sent = [request(row, output=64) for row in range(4)]
    sent[1].deadline_ns = 7 * MS  # after its first block
    sent[2].deadline_ns = 2 * MS  # in the queue
    sent.append(request(4, prompt=5000))
    run = simulate(sent, [[5, 5]] * 5, max_num_seqs=2)
    reasons = [FinishReason.STOP, FinishReason.TIMEOUT, FinishReason.TIMEOUT, FinishReason.STOP]
    assert [each.finish_reason for each in sent[:4]] == reasons
    assert run.refused == sent[4:]
    assert len(run.commit_ns[sent[1]]) == 1


def test_a_round_is_priced_as_prefills_under_a_block_causal_mask() -> None:
    seen = []

    class Noting(Linear):
        def step_ns(self, features: Any) -> int:
            names = ("prefill_seqs", "prefill_tokens", "prefill_pairs", "prefill_kv_tokens", "emitted_rows")
            seen.append(tuple(getattr(features, name) for name in names))
            return MS

    simulate([request(0, prompt=70, output=20)], [[3]], latency=Noting(LinearCoefficients()))
    within = 32 * 32
    assert seen == [
        (1, 64, within + 2 * within, 0, 0),
        (1, 32, 32 * 64 + within, 64, 26),
        (1, 32, 32 * 64 + within, 64, 13),
        (1, 32, 32 * 64 + within, 64, 0),
    ]
