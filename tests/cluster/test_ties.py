"""Things that happen at the same nanosecond: what is seen by whom does not depend on how time is passed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster_runs import Row, Run, differences, linear, table_of
from hypothesis import given, settings
from hypothesis import strategies as st
from one_pool import simulate

from blis_py.core.config import SchedulerConfig
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.latency.base import FrontendDelays
from blis_py.metrics.record import Outcome
from blis_py.models.model_shape import load_model

US = 1000
STEP_US = 10
CONFIG = SchedulerConfig(num_kv_blocks=4000, max_model_len=8000)

CONSTANT = linear(STEP_US * US)
PHYSICS = build(
    "trained-physics",
    shape=load_model("qwen3-0.6b"),
    gpu=load_gpu("h100"),
    alpha=(0, 0, 0),
    beta=(0, 0, 0, 0, 0, 0, STEP_US),
)
"""The same steps, priced in another way: runs of them are lines."""
LATE = linear(STEP_US * US, frontend=FrontendDelays(before_enqueue_ns=5 * US))
LATENCIES = {"constant": CONSTANT, "physics": PHYSICS, "late": LATE}


@pytest.mark.slow
@settings(max_examples=60)
@given(
    asynchronous=st.booleans(),
    latency=st.sampled_from(sorted(LATENCIES)),
    steps=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    outputs=st.lists(st.integers(1, 80), min_size=7, max_size=7),
    instances=st.integers(1, 2),
)
def test_arrivals_at_the_end_of_a_step_are_seen_by_the_next_one_under_a_router_that_looks_at_load(
    asynchronous: bool, latency: str, steps: list[int], outputs: list[int], instances: int
) -> None:
    """The run of alike steps in which they arrive is cut exactly there, and not a step later."""
    config = replace(CONFIG, async_scheduling=asynchronous)
    rows = [Row(0, 1, 90, 90), *(Row(STEP_US * at, 1, n, n) for at, n in zip(steps, outputs, strict=False))]

    def record(single_step: bool) -> Any:
        return simulate(
            table_of(rows),
            scheduler=config,
            latency=LATENCIES[latency],
            num_instances=instances,
            routing_policy="least-loaded",
            snapshot_refresh_ns=0,
            single_step=single_step,
        )

    assert differences(record(False), record(True)) == []


@pytest.mark.parametrize("latency", LATENCIES)
@pytest.mark.parametrize("routing", ["round-robin", "least-loaded"])
def test_an_arrival_at_the_end_of_a_step_is_scheduled_there(latency: str, routing: str) -> None:
    """Early in the run of alike steps, in the middle of it, and at the end of its last step but one."""
    for steps in (1, 7, 20, 38):
        rows = [Row(0, 1, 40, 40), Row(STEP_US * steps, 1, 1, 1)]
        record = simulate(
            table_of(rows), scheduler=CONFIG, latency=LATENCIES[latency], routing_policy=routing
        )
        assert (record.scheduled_ns - record.enqueue_ns).tolist() == [0, 0], steps


@pytest.mark.parametrize("single_step", [False, True])
@pytest.mark.parametrize("routing", ["round-robin", "least-loaded"])
def test_a_request_that_arrives_exactly_at_the_horizon_belongs_to_the_run(
    routing: str, single_step: bool
) -> None:
    options: dict[str, Any] = {"routing_policy": routing, "single_step": single_step}
    for at_us, outcome in ((95, Outcome.QUEUED), (100, Outcome.RUNNING)):  # within a step, and at its end
        rows = [Row(0, 1, 90, 90), Row(at_us, 1, 5, 5), Row(at_us + 1, 1, 5, 5)]
        options["horizon_ns"] = at_us * US
        record = simulate(table_of(rows), scheduler=CONFIG, latency=CONSTANT, **options)
        assert record.outcome.tolist() == [Outcome.RUNNING, outcome]
        assert record.instance.tolist() == [0, 0]
        assert record.enqueue_ns.tolist() == [0, at_us * US]


@pytest.mark.parametrize(("delay_us", "dispatched"), [(0, True), (3, True), (4, False)])
def test_a_request_that_reaches_its_instance_exactly_at_the_horizon_was_dispatched(
    delay_us: int, dispatched: bool
) -> None:
    rows = [Row(0, 1, 90, 90), Row(97, 1, 5, 5)]
    for single_step in (False, True):
        record = simulate(
            table_of(rows),
            scheduler=CONFIG,
            latency=CONSTANT,
            horizon_ns=100 * US,
            admission_latency_ns=delay_us * US,
            single_step=single_step,
        )
        assert record.instance.tolist() == [0, 0 if dispatched else -1]


CHUNK = 4096
"""Requests are made and handed out so many at a time."""


@pytest.mark.slow
@pytest.mark.parametrize("instances", [1, 2])
def test_requests_that_arrive_together_are_served_together_wherever_they_stand_in_the_trace(
    instances: int,
) -> None:
    """The last of a chunk and the first of the next arrive at the end of one step, and start in the next."""
    begin_us = 5_000
    early = [Row(begin_us + i // 32 * STEP_US, 1, 1, 1) for i in range(CHUNK - 2)]
    at_us = begin_us + (CHUNK // 32 + 2) * STEP_US
    rows = [*early, Row(at_us - 2 * STEP_US, 1, 9, 9), *(Row(at_us, 1, 2, 2) for _ in range(4))]
    run = Run(rows, CONFIG, options={"num_instances": instances})
    record = run.record()
    assert record.scheduled_ns[CHUNK - 1 :].tolist() == [at_us * US] * 4
    assert differences(record, run.record(single_step=True)) == []
