"""Who is let into the cluster, what becomes of those who are not, and what that costs the others."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cluster_runs import CLASSES, Row, Run, differences, linear, of_diffusion, runs, table_of
from flow_runs import reasons
from hypothesis import given, settings
from hypothesis import strategies as st
from one_pool import simulate

from blis_py.cluster.ingress.admission import (
    ADMISSION_POLICIES,
    NO_TOKENS,
    OVER_BUDGET,
    REJECT_ALL,
    SATURATED,
    TIER_SHED,
    TOO_LONG,
    AdmissionSettings,
    GaieLegacy,
)
from blis_py.cluster.ingress.closed_loop import ClosedLoop
from blis_py.core.config import SchedulerConfig
from blis_py.core.request import Request
from blis_py.metrics import summarise
from blis_py.metrics.invariants import InternalError, check
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.report.table import print_short, print_summary
from blis_py.report.vllm import vllm_result

US, MS, SECOND = 1_000, 1_000_000, 10**9
STEP_NS = 10 * US
CONFIG = SchedulerConfig(num_kv_blocks=400, max_model_len=6_000, max_num_seqs=4)
LIVE: dict[str, Any] = {"snapshot_refresh_ns": 0}


def run(rows: list[Row], policy: str, config: SchedulerConfig = CONFIG, **given: Any) -> RunRecord:
    limits = {name: given.pop(name) for name in list(given) if name in AdmissionSettings.__dataclass_fields__}
    record = simulate(
        table_of(rows),
        scheduler=config,
        latency=linear(STEP_NS),
        admission_policy=policy,
        admission=AdmissionSettings(**limits),
        **given,
    )
    check(record)
    return record


# -- the policies ------------------------------------------------------------------------------------


def test_reject_all_admits_no_request_and_takes_the_time_of_admission() -> None:
    record = run([Row(5, 20, 3), Row(9, 20, 3)], "reject-all", admission_latency_ns=2 * US)
    assert reasons(record) == [REJECT_ALL] * 2
    assert record.finish_ns.tolist() == [7 * US, 11 * US]
    assert record.instance.tolist() == [-1, -1]


def test_a_bucket_is_full_at_first_refills_with_time_and_a_prompt_takes_its_length() -> None:
    """A capacity of 100, and 1000 tokens a second: one in each ms."""
    at_ms = (0, 1, 30, 41, 42, 400)
    rows = [Row(1000 * at, prompt, 1) for at, prompt in zip(at_ms, (80, 40, 50, 20, 101, 100), strict=True)]
    record = run(rows, "token-bucket", token_bucket_capacity=100, token_bucket_refill_rate=1_000)
    # 20 are left, 21, 50 of which none are left, 11, and it is full again.
    assert reasons(record) == ["", NO_TOKENS, "", NO_TOKENS, TOO_LONG, ""]


def test_under_load_only_classes_of_the_least_priority_come_in() -> None:
    """One request under way is a load of 2: it runs, and it is in flight."""
    rows = [Row(5 * i, 20, 1000, slo_class=name) for i, name in enumerate(["batch", *CLASSES])]
    record = run(rows, "tier-shed", tier_shed_threshold=1, tier_shed_min_priority=-1, **LIVE)
    assert reasons(record) == ["", "", "", "", TIER_SHED, TIER_SHED, ""]
    gentle = run(rows, "tier-shed", tier_shed_threshold=8, tier_shed_min_priority=-1, **LIVE)
    assert reasons(gentle) == ["", "", "", "", "", TIER_SHED, ""]


@pytest.mark.parametrize(("num_instances", "shed"), [(1, True), (2, False)])
def test_a_pool_is_saturated_by_the_mean_of_its_instances(num_instances: int, shed: bool) -> None:
    """Four run, three wait. Of two instances each has two or three, and none waits."""
    rows = [Row(i, 20, 1000) for i in range(7)] + [Row(50, 20, 1, slo_class=name) for name in ("", "batch")]
    options = {"num_instances": num_instances, **LIVE}
    record = run(rows, "gaie-legacy", gaie_qd_threshold=3, **options)
    assert reasons(record)[7:] == ["", SATURATED if shed else ""]
    by_memory = run(rows, "gaie-legacy", gaie_kv_threshold=0.001, **options)
    assert reasons(by_memory)[7:] == ["", SATURATED]


def test_a_tenant_has_a_share_of_all_slots_and_only_its_sheddable_requests_are_rejected() -> None:
    """Two instances of four slots: half of them is four, and with five under way the tenant is over it."""
    rows = [Row(i, 20, 30, slo_class="batch", tenant="acme") for i in range(7)]
    rows += [Row(8, 20, 30, slo_class="critical", tenant="acme")]
    rows += [Row(9, 20, 30, slo_class="batch", tenant=tenant) for tenant in ("beta", "")]
    rows += [Row(1000, 20, 30, slo_class="batch", tenant="acme")]
    record = run(rows, "always-admit", tenant_budgets={"acme": 0.5}, num_instances=2)
    assert reasons(record) == [""] * 5 + [OVER_BUDGET] * 2 + [""] * 4


def test_what_a_budget_refuses_takes_no_tokens_out_of_the_bucket() -> None:
    rows = [Row(i, 40, 30, slo_class="batch", tenant=tenant) for i, tenant in enumerate("aaab")]
    record = run(rows, "token-bucket", token_bucket_capacity=100, tenant_budgets={"a": 0})
    assert reasons(record) == ["", OVER_BUDGET, OVER_BUDGET, ""]


def test_between_two_reports_a_policy_has_the_waiting_requests_of_the_latest() -> None:
    rows = [Row(i, 20, 1000) for i in range(8)] + [
        Row(20 + 10 * i, 20, 1, slo_class="batch") for i in range(4)
    ]
    record = run(rows, "gaie-legacy", gaie_qd_threshold=3, snapshot_refresh_ns=40 * US)
    assert reasons(record)[8:] == ["", "", SATURATED, SATURATED]


# -- whole runs --------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=100)
@given(run=runs(), policy=st.sampled_from(sorted(ADMISSION_POLICIES)), threshold=st.sampled_from([0, 1, 2]))
def test_every_request_ends_in_one_bucket_and_the_same_whether_or_not_steps_are_skipped(
    run: Run, policy: str, threshold: int
) -> None:
    limits = replace(run.options["admission"], tier_shed_threshold=threshold, tier_shed_min_priority=4)
    limits = replace(limits, gaie_qd_threshold=0.5, gaie_kv_threshold=0.1)
    run = replace(run, options={**run.options, "admission_policy": policy, "admission": limits})
    record = run.record()
    check(record)
    assert differences(record, run.record()) == []
    assert differences(record, run.record(single_step=True)) == []
    counts = summarise(record)["cluster"]["requests"]
    assert counts["injected"] == len(record.table)
    assert counts["injected"] == sum(counts.values()) - counts["injected"] - counts["length_capped"]
    assert counts["rejected"] == sum(bool(why) for why in reasons(record))
    horizon_ns = run.options["horizon_ns"]
    if horizon_ns is not None:
        assert record.finish_ns[record.outcome == Outcome.REJECTED].max(initial=0) <= horizon_ns


@pytest.mark.parametrize("routing_us", [0, 40])
def test_requests_that_come_in_several_chunks_are_decided_about_as_if_in_one(
    routing_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Row(7 * i, 20, 5 + i % 9, slo_class="batch") for i in range(60)]
    delays = {"admission_latency_ns": 3 * US, "routing_latency_ns": routing_us * US}
    options: dict[str, Any] = {"tier_shed_threshold": 5, "num_instances": 2, **delays, **LIVE}
    whole = run(rows, "tier-shed", **options)
    monkeypatch.setattr("blis_py.cluster.ingress.source.CHUNK", 4)
    assert differences(whole, run(rows, "tier-shed", **options)) == []
    assert 5 < (whole.outcome == Outcome.REJECTED).sum() < 55


@pytest.mark.slow
@settings(max_examples=40)
@given(
    policy=st.sampled_from(sorted(ADMISSION_POLICIES)),
    outputs=st.lists(st.integers(1, 30), min_size=1, max_size=30),
    permits=st.integers(1, 6),
    delay_us=st.sampled_from([0, 3]),
    budgets=st.sampled_from([{}, {"acme": 0.3}]),
)
def test_in_a_closed_loop_a_rejection_frees_the_permit(
    policy: str, outputs: list[int], permits: int, delay_us: int, budgets: dict[str, float]
) -> None:
    """All requests are sent, and never more are in flight than there are permits."""
    rows = [Row(0, 20, n, slo_class=CLASSES[n % 6], tenant="acme" if n % 2 else "") for n in outputs]
    limits = AdmissionSettings(token_bucket_capacity=100, tenant_budgets=budgets, gaie_qd_threshold=0.5)
    records = [
        simulate(
            ClosedLoop(table_of(rows), permits, 5 * US),
            scheduler=replace(CONFIG, max_num_seqs=2),
            latency=linear(STEP_NS),
            admission_policy=policy,
            admission=limits,
            admission_latency_ns=delay_us * US,
            routing_latency_ns=delay_us * US,
            single_step=single_step,
            **LIVE,
        )
        for single_step in (False, True)
    ]
    assert differences(*records) == []
    record = records[0]
    check(record)
    assert len(record.table) == len(rows)
    assert set(record.outcome.tolist()) <= {Outcome.COMPLETED, Outcome.REJECTED}
    if policy == "reject-all":
        assert record.outcome.tolist() == [Outcome.REJECTED] * len(rows)
    sent, ended = np.sort(record.table.arrival_ns), np.sort(record.finish_ns)
    assert (np.arange(1, len(sent) + 1) - np.searchsorted(ended, sent, side="right")).max() <= permits
    if policy == "reject-all":
        nth = np.arange(len(rows)) // permits
        assert record.table.arrival_ns.tolist() == (nth * (5 + delay_us) * US).tolist()


@pytest.mark.parametrize("policy", ["reject-all", "token-bucket"])
def test_clients_whose_requests_are_rejected_go_on(policy: str) -> None:
    source = ClosedLoop(table_of([Row(0, 200, 2)] * 9), 2, 5 * US)
    limits = AdmissionSettings(token_bucket_capacity=100)
    options: dict[str, Any] = {"admission_policy": policy, "admission": limits}
    record = simulate(source, scheduler=CONFIG, latency=linear(STEP_NS), **options)
    assert record.outcome.tolist() == [Outcome.REJECTED] * 9
    assert record.table.arrival_ns.tolist() == [n // 2 * 5 * US for n in range(9)]


def test_what_is_decided_behind_the_end_of_a_run_is_not_decided() -> None:
    rows = [Row(at, 20, 1) for at in (0, 8, 9)]
    delays = {"admission_latency_ns": 2 * US, "routing_latency_ns": 3 * US, "horizon_ns": 10 * US}
    for policy in ("reject-all", "token-bucket", "tier-shed"):
        for single_step in (False, True):
            record = run(rows, policy, single_step=single_step, **delays)
            expected = [REJECT_ALL] * 2 if policy == "reject-all" else [""] * 2
            assert reasons(record) == [*expected, ""]
            assert record.outcome[2] == Outcome.QUEUED
            assert record.instance.tolist() == [-1 if expected[0] else 0, -1, -1]


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1000),
    policy=st.sampled_from(sorted(ADMISSION_POLICIES)),
    delays_ns=st.sampled_from([(0, 0), (7 * US, 0), (MS, 3 * MS)]),
    budgets=st.sampled_from([{}, {"": 0.2}]),
)
def test_block_diffusion_too_whether_or_not_rounds_are_skipped(
    seed: int, policy: str, delays_ns: tuple[int, int], budgets: dict[str, float]
) -> None:
    limits = AdmissionSettings(token_bucket_capacity=300, gaie_qd_threshold=1, tenant_budgets=budgets)
    record = of_diffusion(
        seed,
        ["batch"],
        admission_policy=policy,
        admission=limits,
        admission_latency_ns=delays_ns[0],
        routing_latency_ns=delays_ns[1],
        **LIVE,
    )
    check(record)
    assert set(record.outcome.tolist()) <= {Outcome.COMPLETED, Outcome.REJECTED}
    assert (record.outcome == Outcome.REJECTED).any() or policy == "always-admit"


def test_a_rejection_without_a_reason_contradicts_itself() -> None:
    record = run([Row(0, 20, 3), Row(1, 20, 3)], "reject-all")
    with pytest.raises(InternalError, match="rejected without a reason"):
        check(replace(record, rejection=None))
    record.outcome[1] = Outcome.QUEUED
    with pytest.raises(InternalError, match="a rejection and its reason disagree"):
        check(record)


# -- what is reported --------------------------------------------------------------------------------


def test_rejections_are_counted_by_reason_by_class_and_by_tenant() -> None:
    rows = [Row(1000 * i, 60, 1, slo_class=name, tenant="ab"[i % 2]) for i, name in enumerate(CLASSES)]
    record = run([*rows, Row(9000, 101, 1)], "token-bucket", token_bucket_capacity=100)
    report = summarise(record)["admission"]
    assert report == {
        "rejected": 6,
        "by_reason": {NO_TOKENS: 5, TOO_LONG: 1},
        "by_class": {
            "standard": {NO_TOKENS: 2, TOO_LONG: 1},
            "batch": {NO_TOKENS: 1},
            "sheddable": {NO_TOKENS: 1},
            "background": {NO_TOKENS: 1},
        },
        "by_tenant": {"a": {NO_TOKENS: 2}, "b": {NO_TOKENS: 3}, "default": {TOO_LONG: 1}},
    }
    assert Counter(reasons(record)) == {"": 1, **report["by_reason"]}


def test_both_tables_and_the_result_file_of_vllm_say_why() -> None:
    record = run([Row(0, 60, 1), Row(1, 60, 1, slo_class="batch")], "token-bucket", token_bucket_capacity=100)
    summary = summarise(record)
    for show in (print_summary, print_short):
        out = io.StringIO()
        show(summary, out)
        assert f"1 rejected: 1 {NO_TOKENS} · shed (batch) 1" in out.getvalue()
    assert vllm_result(record)["errors"] == ["", f"rejected by admission: {NO_TOKENS}"]


def test_without_rejections_nothing_is_said_of_them() -> None:
    record = run([Row(0, 20, 3)], "token-bucket")
    assert "admission" not in summarise(record)
    assert record.rejection is None


@pytest.mark.parametrize(
    ("queued", "used", "saturation"),
    [((2, 2), (0, 0), 1.0), ((4, 0), (0, 0), 1.0), ((0, 0), (0.8, 0.8), 1.0), ((3, 0), (0.4, 0.32), 0.95)],
)
def test_a_pool_is_saturated_by_queues_or_memory_and_sheds_what_is_below_zero(
    queued: tuple[int, int], used: tuple[float, float], saturation: float
) -> None:
    """The mean over instances of the larger of two ratios, to 2 in the queue and 80 % of the blocks."""
    signals = SimpleNamespace(ready=[0, 1], queue_depth=queued, kv_utilization=used, watch_kv=lambda: None)
    limits = AdmissionSettings(gaie_qd_threshold=2, gaie_kv_threshold=0.8)
    setup: Any = SimpleNamespace(signals=signals, priority=[3, 0, -1], settings=limits)
    policy = GaieLegacy(setup)
    assert policy.saturation() == pytest.approx(saturation)
    lines = [policy(Request(str(row), 0, 10, row=row), 0) for row in range(3)]
    assert [bool(each) for each in lines] == [False, False, saturation >= 1]
