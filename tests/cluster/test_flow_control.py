"""Requests that wait at the gateway: who, how long, who goes next, and who never does."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cluster_runs import CLASSES, Row, Run, differences, flows, linear, runs, table_of
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_py.cluster.admission import AdmissionSettings
from blis_py.cluster.closed_loop import ClosedLoop
from blis_py.cluster.diffusion import BlockDiffusion, DiffusionCosts
from blis_py.cluster.dispatch_order import DISPATCH_ORDERS, DispatchOrder
from blis_py.cluster.fairness import FAIRNESS_POLICIES
from blis_py.cluster.flow_control import EVICTED, TTL
from blis_py.cluster.flow_settings import FlowSettings
from blis_py.cluster.gateway_queue import BAND_FULL, QUEUE_FULL
from blis_py.cluster.saturation import SATURATION_DETECTORS
from blis_py.cluster.signals import Signals
from blis_py.cluster.simulation import simulate
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.latency.base import FrontendDelays
from blis_py.metrics import summarise
from blis_py.metrics.frames import requests_frame
from blis_py.metrics.invariants import InternalError, check
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.report.blis import blis_metrics
from blis_py.report.table import print_short, print_summary
from blis_py.report.vllm import vllm_result
from blis_py.workload.diffusion import MeasuredSteps, table_rounds
from blis_py.workload.diffusion_steps import MeanAndSpread

US, MS, SECOND = 1_000, 1_000_000, 10**9
STEP_NS = 10 * US
CONFIG = SchedulerConfig(num_kv_blocks=400, max_model_len=6_000, max_num_seqs=8)
ONE = FlowSettings(saturation_detector="concurrency", max_concurrency_per_instance=1)
"""One request at a time on each instance."""


def run(rows: list[Row], flow: FlowSettings = ONE, **options: Any) -> RunRecord:
    asked: dict[str, Any] = {"scheduler": CONFIG, "latency": linear(STEP_NS), "flow_control": flow, **options}
    record = simulate(table_of(rows), **asked)
    check(record)
    assert differences(record, simulate(table_of(rows), **asked, single_step=True)) == []
    return record


def reasons(record: RunRecord) -> list[str]:
    return [""] * len(record.table) if record.rejection is None else record.rejection.to_list()


def waits_us(record: RunRecord) -> list[float]:
    assert record.gateway_ns is not None
    return [wait / US for wait in record.gateway_ns.tolist()]


def order(record: RunRecord) -> list[int]:
    """Rows in the order in which they were dispatched."""
    rows = np.flatnonzero(record.instance >= 0)
    return [int(row) for row in rows[np.argsort(record.enqueue_ns[rows], kind="stable")]]


# -- who goes next -----------------------------------------------------------------------------------

MIXED = [
    Row(0, 20, 5),
    *(Row(1 + i, 20, 1, slo_class=name) for i, name in enumerate(["batch", "critical", "", "critical"])),
]


def test_a_request_waits_until_another_has_ended_and_goes_a_nanosecond_later() -> None:
    """Five steps of 10 us, and the gateway sees the end of the last one when it looks after it."""
    record = run(MIXED[:2])
    assert waits_us(record) == [0, 49.001]
    assert record.enqueue_ns.tolist() == [0, 50 * US + 1]
    assert record.scheduled_ns.tolist() == [0, 50 * US + 1]


def test_first_in_first_out_knows_no_classes_and_the_other_orders_put_the_urgent_first() -> None:
    assert order(run(MIXED)) == [0, 1, 2, 3, 4]
    for name in ("priority", "slo-deadline", "edf"):
        assert order(run(MIXED, replace(ONE, dispatch_order=name))) == [0, 2, 4, 3, 1]


def test_of_one_priority_the_target_that_would_be_missed_first_goes_first() -> None:
    """Gold counts as urgent as standard, and has a target; who has none comes last."""
    rows = [
        Row(0, 20, 5),
        *(Row(1 + i, 20, 1, slo_class=name) for i, name in enumerate(["", "standard", "gold"])),
    ]
    flow = replace(ONE, dispatch_order="slo-deadline")
    for targets_ns, expected in (({"gold": 90 * US}, [0, 3, 1, 2]), ({"standard": 90 * US}, [0, 1, 2, 3])):
        record = run(rows, replace(flow, slo_targets_ns=targets_ns), slo_priorities={"gold": 3})
        assert order(record) == expected


def test_a_request_that_brings_a_target_has_that_one() -> None:
    rows = [Row(0, 20, 5), Row(1, 20, 1), Row(2, 20, 1)]
    flow = replace(ONE, dispatch_order="slo-deadline", slo_targets_ns={"standard": 60 * US})
    table = replace(table_of(rows), slo_target_ns=np.array([0, 0, 30 * US]))
    record = simulate(table, scheduler=CONFIG, latency=linear(STEP_NS), flow_control=flow)
    assert order(record) == [0, 2, 1]


def test_the_client_that_gives_up_first_goes_first() -> None:
    rows = [Row(0, 20, 5), Row(1, 20, 1), Row(2, 20, 1, patience_us=900), Row(3, 20, 1, patience_us=500)]
    assert order(run(rows, replace(ONE, dispatch_order="edf"))) == [0, 3, 2, 1]


def test_tenants_take_turns_by_name_within_each_priority() -> None:
    rows = [Row(0, 20, 9), *(Row(1 + i, 20, 1, tenant=name) for i, name in enumerate("bbbaac"))]
    rows.append(Row(9, 20, 1, slo_class="critical", tenant="b"))
    assert order(run(rows, replace(ONE, dispatch_order="priority"))) == [0, 7, 1, 2, 3, 4, 5, 6]
    turns = order(run(rows, replace(ONE, dispatch_order="priority", fairness_policy="round-robin")))
    assert turns == [0, 7, 4, 1, 6, 5, 2, 3]  # b had the turn of its own priority only; then a, b, c, a, b, b


def test_a_tenant_that_sends_ten_times_as_much_leaves_the_others_their_share() -> None:
    """Twenty slots are given while both wait: one of two each, where first in first out gives one of ten."""
    rows = [Row(i, 20, 2, tenant="quiet" if i % 10 == 9 else "loud") for i in range(100)]
    served = {}
    for policy in FAIRNESS_POLICIES:
        first = order(run(rows, replace(ONE, fairness_policy=policy), horizon_ns=400 * US))
        served[policy] = sum(rows[row].tenant == "quiet" for row in first)
    assert served["round-robin"] >= 8 > 2 >= served["global-strict"]


def test_the_less_urgent_a_band_the_less_saturation_it_bears() -> None:
    """Of ten slots critical ones get all, the last of three bands none of the second half."""
    names = ["critical", "", "batch"]
    rows = [Row(0, 20, 1, slo_class=name) for name in names]  # all bands are known
    rows += [Row(100 + i, 20, 50, slo_class="critical") for i in range(4)]
    rows += [Row(200 + i, 20, 50, slo_class=name) for i, name in enumerate(["batch"] * 2 + [""] * 4)]
    rows += [Row(300 + i, 20, 50, slo_class="critical") for i in range(3)]
    flow = replace(ONE, max_concurrency_per_instance=10, usage_limit_threshold=0.5, dispatch_order="priority")
    record = run(rows, flow)
    waited = [wait > 0 for wait in waits_us(record)]
    assert waited[3:7] == [False] * 4
    assert waited[7:9] == [False, True]  # 0.4, 0.5
    assert waited[9:13] == [False] * 3 + [True]  # 0.5, 0.6, 0.7; the ceiling is 0.75
    assert waited[13:] == [False] * 2 + [True]


# -- who comes in ------------------------------------------------------------------------------------


def test_a_full_queue_refuses_and_a_full_band_refuses_before() -> None:
    rows = [
        Row(i, 20, 30, slo_class=name) for i, name in enumerate(["", "", "", "batch", "critical", "batch"])
    ]
    record = run(rows, replace(ONE, max_gateway_queue_depth=3))
    assert reasons(record) == [""] * 4 + [QUEUE_FULL] * 2
    record = run(rows, replace(ONE, max_gateway_queue_depth=3, per_band_capacity=1))
    assert reasons(record) == ["", "", BAND_FULL, "", "", BAND_FULL]
    assert record.finish_ns[2] == 2 * US


def test_the_more_urgent_takes_the_place_of_the_least_urgent_that_came_last() -> None:
    names = ["", "batch", "batch", "background", "batch", "critical", "critical", "critical", "", ""]
    record = run(
        [Row(i, 20, 90, slo_class=name) for i, name in enumerate(names)],
        replace(ONE, max_gateway_queue_depth=4, queue_shedding=True),
    )
    shed = "shed for critical"
    assert reasons(record) == ["", "shed for standard", shed, shed, shed, "", "", "", "", QUEUE_FULL]
    assert record.finish_ns[[3, 4, 2, 1]].tolist() == [5 * US, 6 * US, 7 * US, 8 * US]
    assert waits_us(record)[3] == 2


def test_whoever_may_not_be_shed_is_not() -> None:
    """Nor does anybody of the same priority take the place of another."""
    flow = replace(ONE, max_gateway_queue_depth=1, queue_shedding=True)
    for waiting, comes in (("standard", "critical"), ("batch", "batch"), ("background", "background")):
        rows = [Row(i, 20, 90, slo_class=name) for i, name in enumerate(["", waiting, comes])]
        assert reasons(run(rows, flow)) == ["", "", QUEUE_FULL]


# -- waiting too long --------------------------------------------------------------------------------


def test_a_request_waits_no_longer_than_its_time_to_live() -> None:
    rows = [Row(0, 20, 5), Row(1, 20, 1), Row(5, 20, 1)]
    record = run(rows, replace(ONE, request_ttl_ns=48 * US))
    assert reasons(record) == ["", TTL, ""]
    assert record.finish_ns[1] == 49 * US
    assert waits_us(record)[1:] == [48, 45.001]


def test_a_client_that_gives_up_leaves_the_queue_then() -> None:
    rows = [Row(0, 20, 5), Row(1, 20, 1, patience_us=30), Row(2, 20, 1, patience_us=60)]
    record = run(rows, replace(ONE, request_ttl_ns=55 * US))
    assert record.outcome.tolist() == [Outcome.COMPLETED, Outcome.TIMED_OUT, Outcome.COMPLETED]
    assert record.finish_ns[1] == 31 * US
    assert record.instance[1] == -1
    assert reasons(record) == [""] * 3


# -- eviction ----------------------------------------------------------------------------------------


def test_the_least_urgent_that_was_sent_last_leaves_at_the_end_of_its_step_for_one_that_waits() -> None:
    """The newcomer is dispatched at once, and computed in the step after the one in progress."""
    rows = [
        Row(i, 20, 50, slo_class=name) for i, name in enumerate(["batch", "background", "background", ""])
    ]
    rows.append(Row(123, 20, 2, slo_class="critical"))
    flow = replace(ONE, max_concurrency_per_instance=4, in_flight_eviction=True)
    record = run(rows, flow)
    assert reasons(record) == ["", "", EVICTED, "", ""]
    assert record.outcome[2] == Outcome.EVICTED
    assert record.finish_ns[2] == 123 * US
    assert waits_us(record)[4] == 0
    assert record.scheduled_ns[4] == 130 * US
    assert (
        record.emitted_tokens[2] == 11
    )  # of the twelve steps since it was let in, the first computed others
    assert record.instances[0].decode_tokens >= record.emitted_tokens[2]


def test_whose_place_is_taken_leaves_its_instance_though_the_other_goes_to_another_one() -> None:
    """The run of alike steps in which it is ends with the step in progress: the thirteenth."""
    rows = [Row(0, 20, 50), Row(0, 20, 50, slo_class="batch"), Row(123, 20, 1, slo_class="critical")]
    record = run(rows, replace(ONE, in_flight_eviction=True), num_instances=2)
    assert record.instance.tolist() == [0, 1, 0]
    assert record.outcome[1] == Outcome.EVICTED
    assert record.instances[1].step_end_ns.tolist() == [STEP_NS * (n + 1) for n in range(13)]


def test_by_reports_one_at_a_time_leaves_for_one_that_waits() -> None:
    """The next one has to leave when the next report, at 93 us, shows that there is still no room."""
    rows = [Row(0, 20, 90, slo_class="batch")] * 4 + [Row(53, 20, 1, slo_class="critical")]
    rows += [Row(54 + i, 20, 1, slo_class="batch") for i in range(3)]
    flow = FlowSettings(saturation_detector="utilization", queue_depth_threshold=1, in_flight_eviction=True)
    config = replace(CONFIG, max_num_seqs=2)
    record = run(rows, flow, scheduler=config, snapshot_refresh_ns=40 * US)
    assert np.sort(record.finish_ns[record.outcome == Outcome.EVICTED])[:2].tolist() == [53 * US, 93 * US]


def test_nobody_is_evicted_for_one_that_may_be_shed_and_nobody_that_may_not() -> None:
    flow = replace(ONE, in_flight_eviction=True)
    for runs_, comes in (("batch", "batch"), ("background", "batch"), ("", "critical")):
        rows = [Row(0, 20, 5, slo_class=runs_), Row(1, 20, 1, slo_class=comes)]
        assert reasons(run(rows, flow)) == ["", ""]


def test_whoever_ends_with_the_step_in_progress_was_told_to_leave_too_late() -> None:
    rows = [Row(0, 20, 5, slo_class="batch"), Row(45, 20, 1)]
    record = run(rows, replace(ONE, in_flight_eviction=True))
    assert record.outcome.tolist() == [Outcome.COMPLETED] * 2
    assert reasons(record) == ["", ""]


def test_who_is_still_in_the_front_end_is_evicted_there() -> None:
    rows = [Row(0, 20, 5, slo_class="batch"), Row(3, 20, 1)]
    latency = linear(STEP_NS, frontend=FrontendDelays(before_enqueue_ns=7 * US))
    record = run(rows, replace(ONE, in_flight_eviction=True), latency=latency)
    assert record.outcome.tolist() == [Outcome.EVICTED, Outcome.COMPLETED]
    assert record.scheduled_ns.tolist() == [-1, 10 * US]


# -- when it looks -----------------------------------------------------------------------------------


def test_a_detector_that_goes_by_reports_lets_go_when_the_next_report_is_made() -> None:
    """To the nanosecond: at the report of 50 us three wait at the instance, at that of 90 us one."""
    config = replace(CONFIG, max_num_seqs=1)
    flow = FlowSettings(saturation_detector="utilization", queue_depth_threshold=2)
    rows = [Row(0, 20, 2)] * 6 + [Row(50, 20, 1), Row(60, 20, 1)]
    record = run(rows, flow, scheduler=config, snapshot_refresh_ns=40 * US)
    assert waits_us(record) == [0] * 6 + [40, 30]
    assert record.enqueue_ns[6:].tolist() == [90 * US] * 2


def test_with_live_reports_it_lets_go_when_an_instance_takes_one_out_of_its_queue() -> None:
    config = replace(CONFIG, max_num_seqs=1)
    flow = FlowSettings(saturation_detector="utilization", queue_depth_threshold=1)
    record = run([Row(0, 20, 2)] * 4, flow, scheduler=config, snapshot_refresh_ns=0)
    # One runs and one waits there, and whenever one is let in, the next may come.
    assert record.enqueue_ns.tolist() == [0, 1, 20 * US + 1, 40 * US + 1]
    assert np.diff(record.scheduled_ns).tolist() == [20 * US] * 3


def test_ticks_dispatch_one_each() -> None:
    """The first arrival starts them; an end does not dispatch."""
    flow = replace(ONE, max_concurrency_per_instance=2, dispatch_tick_interval_ns=7 * US)
    record = run([Row(1, 20, 2), Row(2, 20, 2), Row(3, 20, 1), Row(4, 20, 1)], flow)
    # The first two end with the steps at 21 and 31 us; ticks are at 8, 15, 22, 29, 36 us.
    assert record.enqueue_ns.tolist() == [US, 2 * US, 22 * US, 36 * US]


def test_routing_takes_its_time_and_who_is_on_the_way_counts_as_in_flight() -> None:
    record = run([Row(0, 20, 5)] * 2, routing_latency_ns=4 * US)
    assert record.enqueue_ns.tolist() == [4 * US, 58 * US + 1]
    assert waits_us(record) == [0, 54.001]


def test_admission_comes_before_the_queue_and_its_refusals_take_no_place() -> None:
    rows = [Row(i, 60, 30) for i in range(4)]
    limits = AdmissionSettings(token_bucket_capacity=130)
    options = {"admission_policy": "token-bucket", "admission": limits, "admission_latency_ns": 3 * US}
    record = run(rows, replace(ONE, max_gateway_queue_depth=1), **options)
    assert reasons(record)[:2] == ["", ""]
    assert reasons(record)[2:] == ["insufficient tokens"] * 2
    assert record.gateway_ns is not None
    assert record.gateway_ns[2:].tolist() == [-1, -1]


def test_budgets_of_tenants_count_who_waits_at_the_gateway_and_not_who_was_shed_there() -> None:
    """Two may be under way; the third is let in as the queue has shed one."""
    rows = [Row(i, 20, 90, slo_class="batch", tenant="acme") for i in range(2)]
    rows += [Row(2, 20, 90), Row(3, 20, 90, slo_class="batch", tenant="acme")]
    flow = replace(ONE, max_gateway_queue_depth=1, queue_shedding=True)
    limits = AdmissionSettings(tenant_budgets={"acme": 1 / 8})
    assert reasons(run(rows, flow, admission=limits)) == ["", "shed for standard", "", QUEUE_FULL]


def test_who_waits_at_the_end_of_a_run_has_waited_so_long() -> None:
    record = run([Row(0, 20, 50), Row(10, 20, 1)], horizon_ns=100 * US)
    assert record.outcome.tolist() == [Outcome.RUNNING, Outcome.QUEUED]
    assert waits_us(record) == [0, 90]
    assert summarise(record)["gateway"]["still_waiting"] == 1


# -- whole runs --------------------------------------------------------------------------------------


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


@settings(max_examples=60)
@given(
    steps=st.lists(st.integers(0, 60), min_size=3, max_size=14),
    outputs=st.lists(st.integers(1, 40), min_size=14, max_size=14),
    most=st.integers(1, 3),
    instances=st.integers(1, 3),
    policy=st.sampled_from(["round-robin", "least-loaded"]),
)
def test_nobody_waits_while_there_is_room(
    steps: list[int], outputs: list[int], most: int, instances: int, policy: str
) -> None:
    """But for the nanosecond that it takes to see an end."""
    rows = [Row(5 * at, 20, n) for at, n in zip(steps, outputs, strict=False)]
    flow = replace(ONE, max_concurrency_per_instance=most)
    record = run(rows, flow, num_instances=instances, routing_policy=policy)
    assert record.gateway_ns is not None
    came, left, ended = record.table.arrival_ns, record.enqueue_ns, record.finish_ns
    for row in np.flatnonzero(record.gateway_ns > 0):
        for moment in [came[row], *ended[(ended > came[row]) & (ended < left[row] - 1)]]:
            seen = moment + 1
            assert ((left <= seen) & (ended >= seen)).sum() >= most * instances


@settings(max_examples=40)
@given(
    outputs=st.lists(st.integers(1, 30), min_size=1, max_size=30),
    permits=st.integers(1, 9),
    flow=flows(),
    delay_us=st.sampled_from([0, 3]),
)
def test_in_a_closed_loop_whoever_leaves_the_gateway_frees_the_permit(
    outputs: list[int], permits: int, flow: FlowSettings, delay_us: int
) -> None:
    """Everybody is sent, and never are more under way than permits."""
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
    stays = record.outcome != Outcome.EVICTED  # its permit is free when its instance lets it go
    sent, ended = np.sort(record.table.arrival_ns[stays]), np.sort(record.finish_ns[stays])
    assert (np.arange(1, len(sent) + 1) - np.searchsorted(ended, sent, side="right")).max(
        initial=0
    ) <= permits


@settings(max_examples=15)
@given(
    seed=st.integers(0, 1000), flow=flows(), delays_ns=st.sampled_from([(0, 0), (7 * US, 0), (MS, 3 * MS)])
)
def test_block_diffusion_too_whether_or_not_rounds_are_skipped(
    seed: int, flow: FlowSettings, delays_ns: tuple[int, int]
) -> None:
    rng = np.random.default_rng(seed)
    rows = [
        Row(4000 * i, int(rng.integers(1, 99)), int(rng.integers(1, 99)), slo_class=CLASSES[i % 6])
        for i in range(30)
    ]
    table = table_of(rows)
    rounds = table_rounds(table, {"": MeasuredSteps(MeanAndSpread(6, 0.5))}, 32, seed)
    flow = replace(flow, request_ttl_ns=1000 * flow.request_ttl_ns)
    one, other = (
        simulate(
            table,
            scheduler=replace(CONFIG, block_size=32, max_num_seqs=2),
            latency=linear(MS),
            num_instances=2,
            flow_control=flow,
            admission_latency_ns=delays_ns[0],
            routing_latency_ns=delays_ns[1],
            diffusion=BlockDiffusion(rounds, DiffusionConfig(), DiffusionCosts()),
            single_step=single_step,
        )
        for single_step in (False, True)
    )
    counters = {f"instances[{index}].diffusion" for index in range(2)}
    assert set(differences(one, other)) <= counters
    check(one)
    assert set(one.outcome.tolist()) <= {Outcome.COMPLETED, Outcome.REJECTED, Outcome.EVICTED}


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


# -- what is told ------------------------------------------------------------------------------------


@pytest.fixture
def crowded() -> RunRecord:
    """One evicted, one shed, one refused, and one that waited."""
    rows = [Row(0, 20, 30, slo_class="batch"), Row(1, 20, 30), Row(2, 20, 9, slo_class="batch")]
    rows += [Row(3, 20, 9), Row(4, 20, 9, slo_class="batch")]
    limits = replace(ONE, max_gateway_queue_depth=1, queue_shedding=True, in_flight_eviction=True)
    return run(rows, limits)


def test_every_end_is_told_with_its_reason(crowded: RunRecord) -> None:
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


def test_the_tables_and_the_rows_of_the_peer_tell_the_wait(crowded: RunRecord) -> None:
    for show in (print_summary, print_short):
        out = io.StringIO()
        show(summarise(crowded), out)
        assert "gateway queue: 2 requests waited" in out.getvalue()
        assert "1 evicted" in out.getvalue()
    delays = [row.get("gateway_queue_delay_ms") for row in blis_metrics(crowded, requests=True)["requests"]]
    assert delays == [None, None, pytest.approx(waits_us(crowded)[3] / 1000)]


def test_an_eviction_without_a_reason_or_an_instance_contradicts_itself(crowded: RunRecord) -> None:
    with pytest.raises(InternalError, match="without a reason"):
        check(replace(crowded, rejection=None))
    crowded.instance[0] = -1
    with pytest.raises(InternalError, match="never dispatched"):
        check(crowded)


def test_waiting_at_the_gateway_for_more_than_a_second_is_overload_too() -> None:
    """Nobody waits at an instance: steps of 10 us, and the gateway lets one in every 20 ms."""
    rows = [Row(1000 * i, 20, 2000) for i in range(100)] + [
        Row(2_100_000 + 30_000 * i, 20, 1) for i in range(200)
    ]
    load = summarise(run(rows))["load"]
    assert load["overloaded_s"] == pytest.approx(0.9, abs=0.15)
    assert summarise(run(rows, FlowSettings()))["load"]["overloaded_s"] == 0


# -- a part of one's own -----------------------------------------------------------------------------


@pytest.fixture
def first_is_free(monkeypatch: pytest.MonkeyPatch) -> str:
    """Nobody goes while anybody runs at the first instance."""

    class FirstIsFree:
        counts_in_flight, reads_reports = True, False

        def __init__(self, settings: FlowSettings, signals: Signals) -> None:
            self.signals = signals

        def __call__(self, in_flight: int) -> float:
            return float(self.signals.in_flight[0])

    monkeypatch.setitem(SATURATION_DETECTORS, "first-is-free", FirstIsFree)
    return "first-is-free"


def test_a_detector_is_a_class_and_a_line_in_a_table(first_is_free: str) -> None:
    record = run(
        [Row(i, 20, 5) for i in range(3)], FlowSettings(saturation_detector=first_is_free), num_instances=2
    )
    assert record.enqueue_ns.tolist() == [0, 50 * US + 1, 50 * US + 1]
    assert record.instance.tolist() == [0, 1, 0]


def test_an_order_is_a_line_in_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    shortest = DispatchOrder(lambda waiting: waiting.request.prompt_tokens, by_priority=False)
    monkeypatch.setitem(DISPATCH_ORDERS, "shortest-first", shortest)
    rows = [Row(0, 20, 5), Row(1, 90, 1), Row(2, 30, 1, slo_class="batch"), Row(3, 60, 1)]
    assert order(run(rows, replace(ONE, dispatch_order="shortest-first"))) == [0, 2, 3, 1]
