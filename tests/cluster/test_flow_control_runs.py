"""Whole runs with a queue at the gateway: nothing is lost, none waits needlessly, and what is reported."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from cluster_runs import CLASSES, Row, Run, differences, flows, linear, of_diffusion, runs, table_of
from flow_runs import CONFIG, ONE, STEP_NS, US, reasons, run, waits_us
from hypothesis import example, given, settings
from hypothesis import strategies as st
from one_pool import simulate
from test_sessions_in_closed_loop import played

from blis_py.cluster.flow_settings import FlowSettings
from blis_py.cluster.ingress.closed_loop import ClosedLoop
from blis_py.cluster.ingress.flow_control import EVICTED
from blis_py.cluster.ingress.gateway_queue import QUEUE_FULL
from blis_py.metrics import summarise
from blis_py.metrics.frames import requests_frame
from blis_py.metrics.invariants import InternalError, check
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.report.blis import blis_metrics
from blis_py.report.table import print_short, print_summary
from blis_py.report.vllm import vllm_result

MS = 1_000_000


@pytest.mark.slow
@settings(max_examples=100)
@given(run=runs(), flow=flows(), asynchronous=st.booleans())
def test_every_request_ends_in_one_bucket_and_the_same_whether_or_not_steps_are_skipped(
    run: Run, flow: FlowSettings, asynchronous: bool
) -> None:
    config = replace(run.config, async_scheduling=asynchronous and run.config.batch_former == "running-first")
    run = replace(run, config=config, options={**run.options, "flow_control": flow})
    record = run.record()
    check(record)
    assert differences(record, run.record()) == []
    assert differences(record, run.record(single_step=True)) == []
    counts = summarise(record)["cluster"]["requests"]
    assert counts["injected"] == len(record.table)
    assert counts["injected"] == sum(counts.values()) - counts["injected"] - counts["length_capped"]
    ended = (record.outcome == Outcome.REJECTED) | (record.outcome == Outcome.EVICTED)
    assert [bool(why) for why in reasons(record)] == ended.tolist()
    if run.options["horizon_ns"] is None:
        assert not counts["still_queued"] + counts["still_running"]


@pytest.mark.slow
@settings(max_examples=60)
@given(
    steps=st.lists(st.integers(0, 60), min_size=3, max_size=14),
    outputs=st.lists(st.integers(1, 40), min_size=14, max_size=14),
    most=st.integers(1, 3),
    instances=st.integers(1, 3),
    policy=st.sampled_from(["round-robin", "least-loaded"]),
)
@example(steps=[0, 0, 0, 2], outputs=[1] * 14, most=1, instances=3, policy="round-robin")
def test_no_request_waits_while_there_is_room(
    steps: list[int], outputs: list[int], most: int, instances: int, policy: str
) -> None:
    """But for the nanosecond that it takes to see an end: an arrival at that time waits so long, too."""
    rows = [Row(5 * at, 20, n) for at, n in zip(steps, outputs, strict=False)]
    flow = replace(ONE, max_concurrency_per_instance=most)
    record = run(rows, flow, num_instances=instances, routing_policy=policy)
    assert record.gateway_ns is not None
    arrived, left, ended = record.table.arrival_ns, record.enqueue_ns, record.finish_ns
    for row in np.flatnonzero(record.gateway_ns > 1):
        for moment in [arrived[row], *ended[(ended > arrived[row]) & (ended < left[row] - 1)]]:
            seen = moment + 1
            assert ((left <= seen) & (ended >= seen)).sum() >= most * instances


@settings(max_examples=40)
@given(
    outputs=st.lists(st.integers(1, 30), min_size=1, max_size=30),
    permits=st.integers(1, 9),
    flow=flows(),
    delay_us=st.sampled_from([0, 3]),
)
def test_in_a_closed_loop_a_request_that_leaves_the_gateway_frees_the_permit(
    outputs: list[int], permits: int, flow: FlowSettings, delay_us: int
) -> None:
    """All requests are sent, and never more are in flight than there are permits."""
    rows = [Row(0, 20, n, slo_class=CLASSES[n % 6], tenant="ab"[n % 2]) for n in outputs]
    records = [
        simulate(
            ClosedLoop(table_of(rows), permits, 5 * US),
            scheduler=replace(CONFIG, max_num_seqs=2),
            latency=linear(STEP_NS),
            flow_control=flow,
            admission_latency_ns=delay_us * US,
            routing_latency_ns=delay_us * US,
            snapshot_refresh_ns=0,
            single_step=single_step,
        )
        for single_step in (False, True)
    ]
    assert differences(*records) == []
    record = records[0]
    check(record)
    assert len(record.table) == len(rows)
    assert set(record.outcome.tolist()) <= {Outcome.COMPLETED, Outcome.REJECTED, Outcome.EVICTED}
    sent, ended = np.sort(record.table.arrival_ns), np.sort(record.finish_ns)
    assert (np.arange(1, len(sent) + 1) - np.searchsorted(ended, sent, side="right")).max(
        initial=0
    ) <= permits


@pytest.mark.slow
@settings(max_examples=60)
@given(
    outputs=st.lists(st.integers(1, 30), min_size=1, max_size=24),
    sessions=st.integers(1, 6),
    flow=flows(),
    asynchronous=st.booleans(),
    as_blis=st.booleans(),
)
def test_a_session_breaks_off_where_the_gateway_turns_it_away_and_goes_on_where_it_only_waits(
    outputs: list[int], sessions: int, flow: FlowSettings, asynchronous: bool, as_blis: bool
) -> None:
    rows = [Row(0, 20, n, slo_class=CLASSES[n % 6], patience_us=(-1, 400)[n % 2]) for n in outputs]
    whose, think_us = [n % sessions for n in range(len(rows))], [7 * n for n in range(len(rows))]
    config = replace(CONFIG, max_num_seqs=2, async_scheduling=asynchronous)
    options = {"scheduler": config, "flow_control": flow, "num_instances": 2}
    record, other = (
        played(rows, whose, think_us, as_blis, **options, single_step=single) for single in (False, True)
    )
    assert differences(record, other) == []
    check(record)
    assert not np.isin(record.outcome, (Outcome.QUEUED, Outcome.RUNNING)).any()
    assert record.unsent_turns is not None
    assert len(record.table) + record.unsent_turns.cancelled == len(rows)
    assert record.unsent_turns.not_reached == 0
    assert record.table.session is not None
    for session in range(sessions):
        answered = record.outcome[record.table.session == session] == Outcome.COMPLETED
        assert answered[:-1].all(), "only the last turn may have gone without an answer"


@pytest.mark.slow
@settings(max_examples=15)
@given(
    seed=st.integers(0, 1000), flow=flows(), delays_ns=st.sampled_from([(0, 0), (7 * US, 0), (MS, 3 * MS)])
)
def test_block_diffusion_too_whether_or_not_rounds_are_skipped(
    seed: int, flow: FlowSettings, delays_ns: tuple[int, int]
) -> None:
    record = of_diffusion(
        seed,
        CLASSES,
        flow_control=replace(flow, request_ttl_us=1000 * flow.request_ttl_us),
        admission_latency_ns=delays_ns[0],
        routing_latency_ns=delays_ns[1],
    )
    check(record)
    assert set(record.outcome.tolist()) <= {Outcome.COMPLETED, Outcome.REJECTED, Outcome.EVICTED}


@pytest.mark.slow
def test_the_gateway_queue_before_one_slot_waits_as_long_as_queueing_theory_says() -> None:
    """M/D/1: a mean wait of rho D / 2 (1 - rho); and as many wait as Little's law has it from those waits."""
    rng, load, count = np.random.default_rng(3), 0.6, 20_000
    arrivals_us = np.cumsum(rng.exponential(STEP_NS / US / load, count)).astype(int)
    rows = [Row(int(at), 4, 1) for at in arrivals_us]
    config = replace(CONFIG, enable_prefix_caching=False)
    record = simulate(table_of(rows), scheduler=config, latency=linear(STEP_NS), flow_control=ONE)
    assert record.gateway_ns is not None
    mean_ns = record.gateway_ns.mean()
    assert mean_ns == pytest.approx(load * STEP_NS / (2 * (1 - load)), rel=0.03)
    moments = np.sort(rng.integers(arrivals_us[0] * US, arrivals_us[-1] * US, count))
    waiting = np.searchsorted(record.table.arrival_ns, moments) - np.searchsorted(
        np.sort(record.enqueue_ns), moments
    )
    assert waiting.mean() == pytest.approx(count / (arrivals_us[-1] * US) * mean_ns, rel=0.03)


def test_without_a_detector_flow_control_changes_nothing() -> None:
    rows = [Row(3 * i, 20, 5 + i % 9, slo_class=CLASSES[i % 6]) for i in range(60)]
    one, other = (
        run(rows, flow) for flow in (FlowSettings(), replace(ONE, max_concurrency_per_instance=10_000))
    )
    without = simulate(table_of(rows), scheduler=CONFIG, latency=linear(STEP_NS))
    assert without.gateway_ns is None
    assert differences(without, one) == differences(without, other) == []
    assert waits_us(one) == waits_us(other) == [0] * 60


# -- what is reported --------------------------------------------------------------------------------


@pytest.fixture
def crowded() -> RunRecord:
    """One evicted, one shed, one refused, and one that waited."""
    rows = [Row(0, 20, 30, slo_class="batch"), Row(1, 20, 30), Row(2, 20, 9, slo_class="batch")]
    rows += [Row(3, 20, 9), Row(4, 20, 9, slo_class="batch")]
    limits = replace(ONE, max_gateway_queue_depth=1, queue_shedding=True, in_flight_eviction=True)
    return run(rows, limits)


def test_every_end_is_reported_with_its_reason(crowded: RunRecord) -> None:
    assert reasons(crowded) == [EVICTED, "", "shed for standard", "", QUEUE_FULL]
    summary = summarise(crowded)
    counts = summary["cluster"]["requests"]
    assert (counts["completed"], counts["rejected"], counts["evicted"]) == (2, 2, 1)
    assert summary["admission"]["by_reason"] == {QUEUE_FULL: 1, "shed for standard": 1}
    gateway = summary["gateway"]
    assert (gateway["waited"], gateway["evicted"], gateway["wait_ms"]["count"]) == (2, 1, 4)
    assert vllm_result(crowded)["errors"] == [
        f"evicted from its instance: {EVICTED}",
        "",
        "rejected by admission: shed for standard",
        "",
        f"rejected by admission: {QUEUE_FULL}",
    ]
    frame = requests_frame(crowded)
    assert frame.outcome.tolist() == ["evicted", "completed", "rejected", "completed", "rejected"]
    assert np.isnan(frame.gateway_queue_ms[4])
    assert frame.gateway_queue_ms[2] == 0.001


def test_the_tables_and_the_rows_of_the_peer_state_the_wait(crowded: RunRecord) -> None:
    for show in (print_summary, print_short):
        out = io.StringIO()
        show(summarise(crowded), out)
        assert "gateway queue: 2 requests waited" in out.getvalue()
        assert "1 evicted" in out.getvalue()
    theirs = blis_metrics(crowded, requests=True)
    assert (
        theirs["injected_requests"] == theirs["completed_requests"] + theirs["gateway_evicted_requests"] == 3
    )
    delays = [row.get("gateway_queue_delay_ms") for row in theirs["requests"]]
    assert delays == [None, None, pytest.approx(waits_us(crowded)[3] / 1000)]


def test_an_eviction_without_a_reason_or_an_instance_contradicts_itself(crowded: RunRecord) -> None:
    with pytest.raises(InternalError, match="without a reason"):
        check(replace(crowded, rejection=None))
    crowded.instance[0] = -1
    with pytest.raises(InternalError, match="never dispatched"):
        check(crowded)


@pytest.mark.slow
def test_waiting_at_the_gateway_for_more_than_a_second_is_overload_too() -> None:
    """No request waits at an instance: steps of 10 us, and the gateway lets one in every 20 ms."""
    rows = [Row(1000 * i, 20, 2000) for i in range(100)] + [
        Row(2_100_000 + 30_000 * i, 20, 1) for i in range(200)
    ]
    load = summarise(run(rows))["load"]
    assert load["overloaded_s"] == pytest.approx(0.9, abs=0.15)
    assert summarise(run(rows, FlowSettings()))["load"]["overloaded_s"] == 0
