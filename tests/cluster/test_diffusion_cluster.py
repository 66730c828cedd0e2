"""Block-diffusion instances behind a router: jumps and look-ahead change nothing, every metric adds up."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from diffusion_alone import run_alone
from hypothesis import given, settings
from hypothesis import strategies as st
from one_pool import simulate

from blis_py.cluster.ingress.source import RequestFactory
from blis_py.cluster.instances.diffusion import BlockDiffusion, DiffusionCosts
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.core.diffusion_request import DiffusionRequest
from blis_py.latency.base import FrontendDelays
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.metrics import summarise
from blis_py.metrics.diffusion import block_sizes
from blis_py.metrics.frames import request_columns
from blis_py.metrics.itl import TokenGaps
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.report.vllm import vllm_result
from blis_py.requests.table import RequestTable
from blis_py.workload.diffusion import MeasuredSteps, table_rounds
from blis_py.workload.diffusion_steps import MeanAndSpread

MS = 1_000_000
DETAILED = Linear(
    LinearCoefficients(LinearCosts(step=7e5, prefill_tokens=900, prefill_pairs=0.7, emitted_rows=333))
)


def random_table(seed: int, count: int = 60, timeout_ns: int = 0) -> RequestTable:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.integers(0, 6 * MS, count))
    return RequestTable.build(
        arrivals,
        rng.choice([1, 31, 32, 33, 200], count),
        rng.integers(1, 120, count),
        deadline_ns=arrivals + timeout_ns if timeout_ns else None,
    )


def run(table: RequestTable, latency: Linear = DETAILED, seed: int = 1, **given: Any) -> RunRecord:
    names = {field.name for field in fields(DiffusionConfig)}
    modes = {name: given.pop(name) for name in list(given) if name in names}
    own = {name: given.pop(name) for name in ("max_num_seqs", "num_kv_blocks") if name in given}
    shape = {"num_kv_blocks": 400, "max_model_len": 400, "block_size": 32, "max_num_seqs": 3} | own
    steps = dict.fromkeys(table.client.names, MeasuredSteps(MeanAndSpread(6, 0.5)))
    rounds = table_rounds(table, steps, 32, seed)
    costs = given.pop("costs", DiffusionCosts())
    return simulate(
        table,
        scheduler=SchedulerConfig(**shape),
        latency=latency,
        kind=BlockDiffusion(rounds, DiffusionConfig(**modes), costs),
        **given,
    )


def same(one: RunRecord, other: RunRecord) -> None:
    for name in ("outcome", "instance", "scheduled_ns", "first_token_ns", "last_token_ns", "finish_ns"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    for name in ("emitted_tokens", "preemptions", "blocks", "block_rounds"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    for name in ("first_step", "last_step", "breaks", "others"):
        emissions = (one.visits.emission, other.visits.emission)
        assert np.array_equal(*(getattr(emission, name) for emission in emissions)), name
    for mine, theirs in zip(one.instances, other.instances, strict=True):
        assert np.array_equal(mine.step_end_ns, theirs.step_end_ns)
        assert mine.busy_ns == theirs.busy_ns
        assert mine.kv_block_steps == theirs.kv_block_steps


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    fdfo=st.booleans(),
    reloop=st.booleans(),
    slots=st.integers(1, 6),
    pages=st.integers(13, 40),
    instances=st.integers(1, 3),
    policy=st.sampled_from(["round-robin", "least-loaded"]),
    horizon_ms=st.sampled_from([None, 150]),
    timeout_ms=st.sampled_from([0, 120]),
)
def test_passing_alike_rounds_in_one_go_gives_what_single_rounds_give(
    seed: int,
    fdfo: bool,
    reloop: bool,
    slots: int,
    pages: int,
    instances: int,
    policy: str,
    horizon_ms: int | None,
    timeout_ms: int,
) -> None:
    table = random_table(seed, timeout_ns=timeout_ms * MS)
    one, other = (
        run(
            table,
            seed=seed,
            fdfo=fdfo,
            reloop=reloop,
            max_num_seqs=slots,
            num_kv_blocks=pages,
            num_instances=instances,
            routing_policy=policy,
            horizon_ns=horizon_ms and horizon_ms * MS,
            snapshot_refresh_ns=0,
            single_step=single_step,
        )
        for single_step in (False, True)
    )
    same(one, other)
    summarise(one)  # checks the invariants


@pytest.mark.parametrize("fdfo", [True, False])
def test_the_process_on_the_shared_clock_serves_as_one_instance_alone_does(fdfo: bool) -> None:
    table = random_table(5)
    steps = {"": MeasuredSteps(MeanAndSpread(6, 0.5))}
    config = SchedulerConfig(num_kv_blocks=40, max_model_len=400, block_size=32, max_num_seqs=3)
    rounds = table_rounds(table, steps, 32, 1)
    sent: list[Any] = RequestFactory(table, 32, kind=DiffusionRequest)(slice(0, 60))
    alone = run_alone(sent, rounds, scheduler=config, latency=DETAILED, diffusion=DiffusionConfig(fdfo=fdfo))
    record = run(table, fdfo=fdfo, num_kv_blocks=40)
    assert record.blocks is not None
    assert record.blocks.tolist() == [len(alone.commit_ns[r]) for r in sent]
    assert record.first_token_ns.tolist() == [alone.commit_ns[r][0] for r in sent]
    assert record.last_token_ns.tolist() == [alone.commit_ns[r][-1] for r in sent]
    gap_ns, counts = TokenGaps(record).of_each(np.arange(60))
    ends = [alone.commit_ns[r] for r in sent]
    assert counts.tolist() == [len(each) - 1 for each in ends]
    assert gap_ns.tolist() == [int(gap) for each in ends for gap in np.diff(each)]
    assert len(record.instances[0].step_end_ns) == alone.counters.rounds


def test_every_instance_serves_its_share() -> None:
    record = run(random_table(3), num_instances=3, routing_policy="least-loaded")
    assert np.bincount(record.instance).min() > 10
    single = run(random_table(3))
    assert record.finish_ns.max() < single.finish_ns.max()
    assert record.emitted_tokens.tolist() == single.emitted_tokens.tolist()


def test_the_summary_has_vllms_diffusion_metrics_by_hand() -> None:
    table = RequestTable.build(np.array([0]), np.array([40]), np.array([50]))
    latency = Linear(LinearCoefficients(LinearCosts(step=MS)))
    config = SchedulerConfig(num_kv_blocks=8, max_model_len=256, block_size=32, max_num_seqs=2)
    record = simulate(
        table, scheduler=config, latency=latency, kind=BlockDiffusion([[4, 6]]), record_steps=True
    )
    summary = summarise(record)["cluster"]
    assert summary["ttft_ms"]["mean"] == 5  # a round of prompt, then four
    assert summary["e2e_ms"]["mean"] == 11
    assert summary["itl_ms"]["mean"] == summary["diffusion"]["time_per_block_ms"]["mean"] == 6
    assert summary["steps"] == 11
    assert summary["prefill_tokens"] == 32
    assert summary["decode_tokens"] == 10 * 32
    blocks = summary["diffusion"]
    assert (blocks["committed_blocks"], blocks["steps_per_block"]) == (2, 5)
    assert (blocks["committed_tokens_per_step"], blocks["wasted_tokens"]) == (5, 24 + 32 - 50)
    columns = request_columns(record)
    assert (columns["blocks"], columns["denoise_rounds"]) == ([2], [10])
    runs = record.instances[0].runs
    assert runs is not None
    assert runs["prefill_blocks"].tolist() == [1] + 10 * [0]
    assert runs["denoise_blocks"].tolist() == [0] + 10 * [1]
    assert runs["commit_blocks"].tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1]


def test_waste_is_what_lies_past_the_end_of_outputs() -> None:
    table = random_table(8)
    blocks = summarise(run(table))["cluster"]["diffusion"]
    in_blocks = -(-(table.prompt_tokens % 32 + table.output_tokens) // 32) * 32
    assert blocks["wasted_tokens"] == (in_blocks - table.prompt_tokens % 32 - table.output_tokens).sum()


def test_synchronous_batches_wait_for_their_slowest_block() -> None:
    fdfo, sync = (summarise(run(random_table(8), fdfo=mode))["cluster"] for mode in (True, False))
    assert fdfo["diffusion"]["idle_block_rounds"] == 0 < sync["diffusion"]["idle_block_rounds"]
    assert fdfo["e2e_ms"]["mean"] < sync["e2e_ms"]["mean"]
    assert fdfo["diffusion"]["committed_blocks"] == sync["diffusion"]["committed_blocks"]


def test_a_client_gets_no_block_after_it_has_given_up() -> None:
    slow = FrontendDelays(per_token_ns=400_000)
    latency = Linear(LinearCoefficients(LinearCosts(step=5 * MS), frontend=slow))
    table = random_table(4, timeout_ns=160 * MS)
    record = run(table, latency, num_instances=2)
    gave_up = record.outcome == Outcome.TIMED_OUT
    assert 5 < gave_up.sum() < 60
    assert (record.emitted_tokens[gave_up] > 0).any()
    assert (record.last_token_ns[gave_up] <= record.finish_ns[gave_up]).all()
    blocks = record.blocks
    assert blocks is not None
    some = np.flatnonzero(record.emitted_tokens > 0)
    first, later = block_sizes(record, some)
    assert first.sum() + later.sum() == record.emitted_tokens.sum()
    assert ((blocks == 0) == (record.emitted_tokens == 0)).all()
    summarise(record)


def test_vllms_result_counts_tokens_and_shows_the_gaps_between_blocks() -> None:
    record = run(random_table(8))
    result = vllm_result(record)
    assert record.blocks is not None
    assert [len(gaps) for gaps in result["itls"]] == (record.blocks - 1).tolist()
    assert result["total_output_tokens"] == record.emitted_tokens.sum()
    assert result["max_output_tokens_per_s"] <= record.emitted_tokens.sum()


def test_what_the_switches_save_is_paid_for_without_them() -> None:
    costs = DiffusionCosts(schedule_ns=100_000, allocator_call_ns=10_000)
    ends = [
        int(run(random_table(2), costs=costs, **switches).finish_ns.max())
        for switches in ({}, {"reloop": False}, {"reloop": False, "reuse_in_place": False})
    ]
    assert ends[0] < ends[1] < ends[2]
