"""Instances that plan and launch a step while the one before it runs."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from cluster_runs import LATENCIES, Row, Run, differences, runs
from hypothesis import given, settings
from hypothesis import strategies as st
from test_jump_under_pressure import pressed

from blis_py.core.config import SchedulerConfig
from blis_py.core.features import StepFeatures
from blis_py.latency.base import overlapped
from blis_py.metrics.invariants import check

US = 1000
ROOMY = SchedulerConfig(num_kv_blocks=1000, max_model_len=4096, async_scheduling=True)


def overlapping(run: Run, eos_share: float = 0.0) -> Run:
    return replace(run, config=replace(run.config, async_scheduling=True), eos_share=eos_share)


def test_an_arrival_waits_out_the_running_step_and_the_one_that_is_planned_already() -> None:
    record = Run([Row(0, 16, 6, 6), Row(12, 16, 2, 2)], ROOMY).record()
    # Steps of 10 µs. The second comes in the second of them, is seen at 20 and computes from 30 on.
    assert record.first_token_ns.tolist() == [10 * US, 40 * US]
    assert record.finish_ns.tolist() == [60 * US, 50 * US]


def test_an_arrival_at_the_very_end_of_a_step_is_seen_by_what_is_planned_then() -> None:
    record = Run([Row(0, 16, 6, 6), Row(20, 16, 2, 2)], ROOMY).record()
    assert record.first_token_ns.tolist() == [10 * US, 40 * US]


def test_with_nothing_in_flight_it_is_planned_at_once() -> None:
    record = Run([Row(0, 16, 2, 2), Row(100, 16, 2, 2)], ROOMY).record()
    assert record.first_token_ns.tolist() == [10 * US, 110 * US]


def test_where_nothing_is_left_to_plan_there_is_no_empty_step() -> None:
    """The first step brings the only token; an arrival meanwhile is planned when it is over."""
    record = Run([Row(0, 16, 1, 1), Row(3, 16, 1, 1)], ROOMY).record()
    assert record.first_token_ns.tolist() == [10 * US, 20 * US]
    assert record.instances[0].steps == 2


def test_an_end_of_sequence_costs_a_forward_and_an_end_by_length_none() -> None:
    rows = [Row(0, 16, 5, 5)]
    for share, forwards in ((0.0, 5), (1.0, 6)):
        record = replace(Run(rows, ROOMY), eos_share=share).record()
        assert (record.instances[0].steps, record.instances[0].discarded_tokens) == (forwards, forwards - 5)
        assert (record.emitted_tokens.tolist(), record.finish_ns.tolist()) == ([5], [50 * US])


@pytest.mark.slow
@settings(max_examples=100)
@given(runs(), st.sampled_from([0.0, 0.0, 0.5, 1.0]))
def test_a_jump_equals_its_steps(run: Run, eos_share: float) -> None:
    run = overlapping(run, eos_share)
    record = run.record()
    assert differences(record, run.record(single_step=True)) == []
    check(record)


@pytest.mark.slow
@settings(max_examples=40)
@given(runs(), st.booleans(), st.sampled_from(["masks", "masks beside the forward"]))
def test_a_jump_equals_its_steps_where_outputs_are_constrained(run: Run, both: bool, latency: str) -> None:
    run = replace(run, latency=latency, constrained=0.5)
    run = overlapping(run, 0.5) if both else run
    record = run.record()
    assert differences(record, run.record(single_step=True)) == []
    check(record)


def test_masks_add_to_synchronous_steps_and_hide_beside_overlapped_ones() -> None:
    rows = [Row(0, 16, 4, 4)]
    ends = {}
    for latency in ("constant", "masks"):
        for loop in (False, True):
            run = Run(rows, replace(ROOMY, async_scheduling=loop), latency, constrained=1.0)
            ends[latency, loop] = run.record().finish_ns.tolist()[0]
    assert ends["masks", False] == ends["constant", False] + 4 * 9_100
    assert ends["masks", True] == ends["constant", True] + 9_100, (
        "but those of the first, with none before it"
    )


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["hash", "radix"])
@pytest.mark.parametrize("scheduler", ["fcfs", "priority-fcfs", "sjf", "lpm", "hrrn"])
def test_a_jump_equals_its_steps_where_blocks_are_short(scheduler: str, cache: str) -> None:
    rng = random.Random(f"{scheduler} {cache}")
    for _ in range(15):
        run = overlapping(pressed(rng, scheduler, cache), rng.choice([0.0, 0.5]))
        record = run.record()
        check(record)
        assert differences(record, run.record(single_step=True)) == []


@pytest.mark.parametrize("latency", sorted(LATENCIES))
def test_long_jumps_equal_their_steps_with_every_latency_model(latency: str) -> None:
    config = SchedulerConfig(num_kv_blocks=40, max_model_len=4096, async_scheduling=True)
    rows = [Row(arrival_us=700 * i, prompt=20 + i, output=300, limit=300) for i in range(6)]
    run = Run(rows, config, latency)
    record = run.record()
    assert record.preemptions.sum() > 0
    assert differences(record, run.record(single_step=True)) == []


def test_host_time_that_can_be_hidden_is_and_the_rest_is_a_gap() -> None:
    decode = StepFeatures(decode_seqs=3, decode_kv_tokens=1000, max_context=400, emitted_rows=3)
    linear, physics = LATENCIES["linear"], LATENCIES["trained-physics"]
    time = linear.step(decode)
    assert overlapped(linear).step_ns(decode) == max(time.gpu_ns, time.host_ns) < time.synchronous_ns
    assert overlapped(physics).step_ns(decode) == physics.step_ns(decode)


@given(st.integers(1, 200), st.integers(1, 5000), st.integers(1, 60))
def test_hidden_host_time_is_hidden_step_by_step(seqs: int, kv_tokens: int, steps: int) -> None:
    model = overlapped(LATENCIES["linear"])
    first = StepFeatures(decode_seqs=seqs, decode_kv_tokens=kv_tokens, max_context=9, emitted_rows=seqs)
    ends = np.cumsum([model.step_ns(first.after(i)) for i in range(steps)])
    assert model.decode_run(first, steps).ends_ns().tolist() == ends.tolist()
