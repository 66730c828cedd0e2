"""Requests that wait at the gateway: who, how long, who goes next, and who never does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cluster_runs import Row, linear, table_of
from flow_runs import CONFIG, ONE, STEP_NS, US, order, reasons, run, waits_us
from one_pool import simulate

from blis_py.cluster.admission_settings import AdmissionSettings
from blis_py.cluster.flow_settings import FlowSettings
from blis_py.cluster.ingress.dispatch_order import DISPATCH_ORDERS, DispatchOrder
from blis_py.cluster.ingress.fairness import FAIRNESS_POLICIES
from blis_py.cluster.ingress.flow_control import EVICTED, TTL
from blis_py.cluster.ingress.gateway_queue import BAND_FULL, QUEUE_FULL
from blis_py.cluster.ingress.saturation import SATURATION_DETECTORS
from blis_py.cluster.routing.signals import Signals
from blis_py.latency.base import FrontendDelays
from blis_py.metrics import summarise
from blis_py.metrics.record import Outcome

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


def test_first_in_first_out_ignores_classes_and_the_other_orders_put_the_urgent_first() -> None:
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
    for targets_us, expected in (({"gold": 90}, [0, 3, 1, 2]), ({"standard": 90}, [0, 1, 2, 3])):
        record = run(rows, replace(flow, slo_targets_us=targets_us), slo_priorities={"gold": 3})
        assert order(record) == expected


def test_a_request_that_brings_a_target_has_that_one() -> None:
    rows = [Row(0, 20, 5), Row(1, 20, 1), Row(2, 20, 1)]
    flow = replace(ONE, dispatch_order="slo-deadline", slo_targets_us={"standard": 60})
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


def test_the_more_urgent_takes_the_place_of_the_least_urgent_that_arrived_last() -> None:
    names = ["", "batch", "batch", "background", "batch", "critical", "critical", "critical", "", ""]
    record = run(
        [Row(i, 20, 90, slo_class=name) for i, name in enumerate(names)],
        replace(ONE, max_gateway_queue_depth=4, queue_shedding=True),
    )
    shed = "shed for critical"
    assert reasons(record) == ["", "shed for standard", shed, shed, shed, "", "", "", "", QUEUE_FULL]
    assert record.finish_ns[[3, 4, 2, 1]].tolist() == [5 * US, 6 * US, 7 * US, 8 * US]
    assert waits_us(record)[3] == 2


def test_a_non_sheddable_request_is_not_shed() -> None:
    """Nor does a request displace one of the same priority."""
    flow = replace(ONE, max_gateway_queue_depth=1, queue_shedding=True)
    for waiting, comes in (("standard", "critical"), ("batch", "batch"), ("background", "background")):
        rows = [Row(i, 20, 90, slo_class=name) for i, name in enumerate(["", waiting, comes])]
        assert reasons(run(rows, flow)) == ["", "", QUEUE_FULL]


# -- waiting too long --------------------------------------------------------------------------------


def test_a_request_waits_no_longer_than_its_time_to_live() -> None:
    rows = [Row(0, 20, 5), Row(1, 20, 1), Row(5, 20, 1)]
    record = run(rows, replace(ONE, request_ttl_us=48))
    assert reasons(record) == ["", TTL, ""]
    assert record.finish_ns[1] == 49 * US
    assert waits_us(record)[1:] == [48, 45.001]


def test_a_client_that_gives_up_leaves_the_queue_then() -> None:
    rows = [Row(0, 20, 5), Row(1, 20, 1, patience_us=30), Row(2, 20, 1, patience_us=60)]
    record = run(rows, replace(ONE, request_ttl_us=55))
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


def test_an_evicted_request_leaves_its_instance_though_the_other_goes_to_another_one() -> None:
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


def test_no_request_is_evicted_for_a_sheddable_one_and_no_non_sheddable_one_at_all() -> None:
    flow = replace(ONE, in_flight_eviction=True)
    for runs_, comes in (("batch", "batch"), ("background", "batch"), ("", "critical")):
        rows = [Row(0, 20, 5, slo_class=runs_), Row(1, 20, 1, slo_class=comes)]
        assert reasons(run(rows, flow)) == ["", ""]


def test_for_a_request_that_ends_with_the_step_in_progress_eviction_comes_too_late() -> None:
    rows = [Row(0, 20, 5, slo_class="batch"), Row(45, 20, 1)]
    record = run(rows, replace(ONE, in_flight_eviction=True))
    assert record.outcome.tolist() == [Outcome.COMPLETED] * 2
    assert reasons(record) == ["", ""]


def test_a_request_that_is_still_in_the_front_end_is_evicted_there() -> None:
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
    flow = replace(ONE, max_concurrency_per_instance=2, dispatch_tick_interval_us=7)
    record = run([Row(1, 20, 2), Row(2, 20, 2), Row(3, 20, 1), Row(4, 20, 1)], flow)
    # The first two end with the steps at 21 and 31 us; ticks are at 8, 15, 22, 29, 36 us.
    assert record.enqueue_ns.tolist() == [US, 2 * US, 22 * US, 36 * US]


def test_routing_has_a_delay_during_which_requests_count_as_in_flight() -> None:
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


def test_budgets_of_tenants_count_requests_queued_at_the_gateway_and_not_those_shed_there() -> None:
    """Two may be under way; the third is let in as the queue has shed one."""
    rows = [Row(i, 20, 90, slo_class="batch", tenant="acme") for i in range(2)]
    rows += [Row(2, 20, 90), Row(3, 20, 90, slo_class="batch", tenant="acme")]
    flow = replace(ONE, max_gateway_queue_depth=1, queue_shedding=True)
    limits = AdmissionSettings(tenant_budgets={"acme": 1 / 8})
    assert reasons(run(rows, flow, admission=limits)) == ["", "shed for standard", "", QUEUE_FULL]


def test_a_request_queued_at_the_end_of_a_run_has_waited_so_long() -> None:
    record = run([Row(0, 20, 50), Row(10, 20, 1)], horizon_ns=100 * US)
    assert record.outcome.tolist() == [Outcome.RUNNING, Outcome.QUEUED]
    assert waits_us(record) == [0, 90]
    assert summarise(record)["gateway"]["still_waiting"] == 1


# -- a part of one's own -----------------------------------------------------------------------------


@pytest.fixture
def first_is_free(monkeypatch: pytest.MonkeyPatch) -> str:
    """None is dispatched while the first instance is busy."""

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
