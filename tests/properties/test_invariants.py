"""What holds for every workload and every setting."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_pool import simulate

from blis_py.core.config import SchedulerConfig
from blis_py.core.request import FinishReason, Request, Status
from blis_py.core.scheduler import Scheduler
from blis_py.latency.base import FrontendDelays
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.requests.table import Labels, RequestTable

LATENCY = Linear(
    LinearCoefficients(
        gpu=LinearCosts(step=5_000, prefill_tokens=40, decode_kv_tokens=2),
        frontend=FrontendDelays(
            before_enqueue_ns=3_000, per_token_ns=10, at_end_ns=400, behind_seq_ns=30, prompt_token_ns=7
        ),
    )
)

CACHES = (("fcfs", "hash"), ("fcfs", "radix"), ("sjf", "radix"), ("lpm", "hash"), ("lpm", "radix"))
CACHES += (("hrrn", "radix"), ("dfs-weight", "radix"))

plain_configs = st.builds(
    SchedulerConfig,
    num_kv_blocks=st.integers(2, 25),
    max_model_len=st.sampled_from([1000, 50]),
    scheduler=st.sampled_from(["fcfs", "priority-fcfs", "sjf", "reverse-priority"]),
    preemption_policy=st.sampled_from(["fcfs", "priority"]),
    batch_former=st.sampled_from(["running-first", "prefill-first"]),
    max_num_seqs=st.sampled_from([1, 3, 256]),
    max_num_batched_tokens=st.sampled_from([2, 9, 2048]),
    long_prefill_token_threshold=st.sampled_from([0, 5]),
    block_size=st.sampled_from([1, 4]),
    enable_prefix_caching=st.booleans(),
)
cached_configs = st.builds(
    lambda config, names: replace(
        config, scheduler=names[0], prefix_cache=names[1], enable_prefix_caching=True
    ),
    plain_configs,
    st.sampled_from(CACHES),
)
configs = st.one_of(plain_configs, cached_configs)


@st.composite
def tables(draw: st.DrawFn) -> RequestTable:
    count = draw(st.integers(1, 12))

    def column(low: int, high: int) -> np.ndarray:
        return np.array([draw(st.integers(low, high)) for _ in range(count)], dtype=np.int64)

    arrival = np.sort(column(0, 400) * 1000)
    output = column(1, 20)
    patience = column(-2, 300)
    return RequestTable.build(
        arrival,
        column(1, 60),
        output,
        max_tokens=np.where(column(0, 3) > 0, output, 0),
        deadline_ns=np.where(patience < 0, -1, arrival + patience * 1000),
        slo_class=Labels.of(draw(st.sampled_from(["critical", "batch", ""])) for _ in range(count)),
        content=column(-1, 1),
        contents=[(("a", 12),), (("a", 8), ("b", 9))],
    )


@st.composite
def consistent_tables(draw: st.DrawFn) -> RequestTable:
    """No prompt is shorter than what it shares."""
    table = draw(tables())
    shared = np.array([0, 12, 17])[table.content + 1]
    table.prompt_tokens[:] = np.maximum(table.prompt_tokens, shared)
    return table


def run(table: RequestTable, config: SchedulerConfig, horizon_ns: int | None, instances: int) -> RunRecord:
    return simulate(
        table, scheduler=config, latency=LATENCY, num_instances=instances, horizon_ns=horizon_ns,
        routing_policy="least-loaded" if instances == 2 else "round-robin",
    )  # fmt: skip


horizons = st.one_of(st.none(), st.integers(0, 700).map(lambda us: us * 1000))


@pytest.mark.slow
@settings(max_examples=60)
@given(consistent_tables(), configs, horizons, st.integers(1, 3))
def test_every_request_ends_in_exactly_one_way_and_its_life_goes_forward(
    table: RequestTable, config: SchedulerConfig, horizon_ns: int | None, instances: int
) -> None:
    record = run(table, config, horizon_ns, instances)
    table = record.table
    count = len(table)
    assert len(record.outcome) == count
    assert sum(Counter(record.outcome.tolist()).values()) == count
    if horizon_ns is None:
        assert not set(record.outcome.tolist()) & {Outcome.QUEUED, Outcome.RUNNING}
    for i in range(count):
        life = [table.arrival_ns[i], record.enqueue_ns[i], record.scheduled_ns[i]]
        life += [record.first_token_ns[i], record.last_token_ns[i]]
        reached = [moment for moment in life if moment >= 0]
        assert reached == sorted(reached)
        assert life[: len(reached)] == reached  # no stage is skipped
        outcome = Outcome(record.outcome[i])
        done = outcome in (Outcome.COMPLETED, Outcome.LENGTH_CAPPED)
        if done:
            assert len(reached) == 5
            assert record.finish_ns[i] >= reached[-1]
            wanted = [table.output_tokens[i], table.max_tokens[i] or table.output_tokens[i]]
            assert record.emitted_tokens[i] == min(wanted) or outcome is Outcome.LENGTH_CAPPED
        if outcome in (Outcome.QUEUED, Outcome.RUNNING):
            assert record.finish_ns[i] == -1
        if outcome is Outcome.UNSERVABLE:
            longest = min(config.max_model_len, config.num_kv_blocks * config.block_size + 1)
            assert table.prompt_tokens[i] + max(table.max_tokens[i], 1) > longest
            assert record.scheduled_ns[i] == -1


@settings(max_examples=20)
@given(consistent_tables(), configs, st.integers(1, 3))
def test_an_instances_clock_only_goes_forward_and_its_steps_do_not_overlap(
    table: RequestTable, config: SchedulerConfig, instances: int
) -> None:
    record = run(table, config, None, instances)
    for instance in record.instances:
        ends = instance.step_end_ns
        assert (np.diff(ends) > 0).all()
        assert instance.busy_ns <= record.end_ns
        assert 0 <= instance.peak_kv_blocks <= config.num_kv_blocks
        assert instance.kv_block_steps <= config.num_kv_blocks * len(ends)


@settings(max_examples=40)
@given(consistent_tables(), configs)
def test_tokens_computed_are_those_of_the_requests_and_of_what_was_computed_again(
    table: RequestTable, config: SchedulerConfig
) -> None:
    patient = RequestTable.build(
        table.arrival_ns, table.prompt_tokens, table.output_tokens, max_tokens=table.max_tokens
    )
    record = run(patient, config, None, 1)
    (instance,) = record.instances
    served = record.outcome != Outcome.UNSERVABLE
    prompts = patient.prompt_tokens[served].sum()
    outputs = record.emitted_tokens[served].sum()
    if not record.preemptions.any():
        assert instance.prefill_tokens == prompts
        assert instance.decode_tokens == outputs - served.sum()
    else:
        assert instance.prefill_tokens >= prompts
        assert instance.decode_tokens <= outputs - served.sum()


@settings(max_examples=40)
@given(consistent_tables(), configs)
def test_an_instance_works_exactly_as_long_as_it_has_requests(
    table: RequestTable, config: SchedulerConfig
) -> None:
    patient = RequestTable.build(
        table.arrival_ns, table.prompt_tokens, table.output_tokens, max_tokens=table.max_tokens
    )
    record = simulate(patient, scheduler=config, latency=Linear(LinearCoefficients(LATENCY.coefficients.gpu)))
    occupied_ns = end = 0
    for begin, finish in sorted(zip(record.enqueue_ns.tolist(), record.finish_ns.tolist(), strict=True)):
        occupied_ns += max(finish - max(begin, end), 0)
        end = max(finish, end)
    assert record.instances[0].busy_ns == occupied_ns


@settings(max_examples=40)
@given(consistent_tables(), configs, st.randoms(use_true_random=False))
def test_nothing_is_leaked_whatever_is_aborted_and_time_outs_happen(
    table: RequestTable, config: SchedulerConfig, random: object
) -> None:
    scheduler = Scheduler(config)
    pending = [
        Request(
            f"r{i}", int(table.arrival_ns[i]), int(table.prompt_tokens[i]), int(table.output_tokens[i]),
            int(table.max_tokens[i]), deadline_ns=int(table.deadline_ns[i]),
            block_keys=[f"block {k}" for k in range(int(table.prompt_tokens[i]) // config.block_size // 2)],
        )
        for i in range(len(table))
    ]  # fmt: skip
    served = [request for request in pending if scheduler.add(request) is None]
    now_ns = 0
    while scheduler.waiting or scheduler.running:
        for request in scheduler.expire(now_ns):
            assert request.finish_reason is FinishReason.TIMEOUT
        alive = [r for r in served if r.status is not Status.FINISHED]
        if alive and random.random() < 0.1:  # type: ignore[attr-defined]
            scheduler.abort(random.choice(alive))  # type: ignore[attr-defined]
        step = scheduler.schedule(now_ns)
        if step is None:
            break
        steps = random.randint(1, scheduler.identical_decode_steps(step))  # type: ignore[attr-defined]
        scheduler.finish(step, steps)
        scheduler.check()
        now_ns += 5_000 * steps
    assert all(request.status is Status.FINISHED for request in served)
    assert scheduler.kv.pool.num_free == scheduler.kv.pool.total
    assert not scheduler.kv.pool.num_reserved


@settings(max_examples=25)
@given(consistent_tables(), configs)
def test_every_step_computes_something_and_stays_within_its_limits(
    table: RequestTable, config: SchedulerConfig
) -> None:
    scheduler = Scheduler(config)
    for i in range(len(table)):
        prompt, output = int(table.prompt_tokens[i]), int(table.output_tokens[i])
        scheduler.add(Request(f"r{i}", 0, prompt, output, output))
    while (step := scheduler.schedule(0)) is not None:
        assert 1 <= step.features.tokens <= config.max_num_batched_tokens
        assert len(scheduler.running) <= config.max_num_seqs
        assert step.features.seqs <= len(scheduler.running)
        assert scheduler.blocks_in_use() <= config.num_kv_blocks
        computing = {r.id for r, _ in step.prefills} | {r.id for r in scheduler.decoding}
        assert not computing & {r.id for r in step.preempted}
        scheduler.finish(step)


@settings(max_examples=40)
@given(consistent_tables(), cached_configs)
def test_a_prefix_cache_changes_when_tokens_come_but_not_how_many(
    table: RequestTable, config: SchedulerConfig
) -> None:
    patient = RequestTable.build(
        table.arrival_ns, table.prompt_tokens, table.output_tokens, max_tokens=table.max_tokens,
        content=table.content, contents=table.contents,
    )  # fmt: skip
    plain = run(patient, replace(config, scheduler="fcfs", prefix_cache="none"), None, 1)
    for cache in ("hash", "radix"):
        cached = run(patient, replace(config, scheduler="fcfs", prefix_cache=cache), None, 1)
        assert (cached.emitted_tokens == plain.emitted_tokens).all()
        assert (cached.outcome == plain.outcome).all()
