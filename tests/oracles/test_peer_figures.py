"""Recorded runs of BLIS, request by request, through our own command line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import mean

import pytest
from peer_runs import Served, apart, peer_run

FREE = {
    "06_token_bucket": 155,
    "07_tier_shed": 180,
    "07_tier_shed_flag": 116,
    "08_gaie_legacy": 162,
    "10_flow_fifo_ttl": 180,
    "17_sessions_spec_accumulate": 130,
    "18_session_mode_closed_loop_column": 93,
    "18_session_mode_closed_loop_dist": 93,
    "19_concurrency_client": 150,
    "26_goodput_multi_model": 153,
}
"""Nothing is random, and requests served."""
ROUTED = {
    "01_weighted_default_prefix_csd50": 4,
    "02_scorers_prefix_affinity_mix": 3,
    "03_scorers_lru_vllmdp_running_mix": 4,
    "04_scorers_load_kv_timeouts": 3,
    "05_least_loaded_busiest_ll": 5,
}
"""Instances; ties were drawn."""
ROUTING = ("--num-instances", "--routing-policy", "--routing-scorers", "--seed")
BY_PRIORITY = {"10_flow_fifo_ttl": ("--dispatch-order", "priority")}
"""BLIS's `fifo` goes by priority."""


def in_order(requests: list[Served]) -> list[Served]:
    """By arrival; those that came together by their lengths and how they were served."""
    return sorted(requests, key=lambda one: (one.arrival_us, one.prompt, one.output, one.ttft_us, one.e2e_us))


@pytest.mark.slow
@pytest.mark.parametrize("name", FREE)
def test_every_request_is_served_where_and_when_it_was_there(name: str, tmp_path: Path) -> None:
    run = peer_run(name)
    ours = run.again(tmp_path, *BY_PRIORITY.get(name, ()))
    assert len(run.served) == FREE[name]
    assert apart(in_order(ours), in_order(run.served)) == []


@pytest.mark.parametrize("name", ROUTED)
def test_instance_by_instance_every_request_takes_as_long(name: str, tmp_path: Path) -> None:
    run = peer_run(name)
    command = run.without(*ROUTING)
    for instance in range(ROUTED[name]):
        theirs = [one._replace(instance=0) for one in run.served if one.instance == instance]
        here = {int(one.request) for one in theirs}
        ours = run.again(tmp_path, command=command, keep=lambda row: row["request_id"] in here)  # noqa: B023
        assert apart(in_order(ours), in_order(theirs)) == []
        assert len(theirs) >= 20


def test_goodput_of_every_class_is_that_of_the_run_there(tmp_path: Path) -> None:
    """Requests for a model that is not served count among the arrivals."""
    run = peer_run("26_goodput_multi_model")
    run.again(tmp_path)
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert found["per_class"].keys() == run.goodput["classes"].keys()
    for name, theirs in run.goodput["classes"].items():
        assert {key: found["per_class"][name][key] for key in theirs} == pytest.approx(theirs, rel=1e-4)
    for key, theirs in run.goodput["all"].items():
        assert found[key] == pytest.approx(theirs, rel=1e-4)


def test_under_budgets_requests_that_were_admitted_take_as_long_instance_by_instance(tmp_path: Path) -> None:
    run = peer_run("09_tenant_budgets")
    for instance in range(2):
        theirs = [one._replace(instance=0) for one in run.served if one.instance == instance]
        here = {int(one.request) for one in theirs}
        command = run.without("--num-instances")
        ours = run.again(tmp_path, command=command, keep=lambda row: row["request_id"] in here, bundle=False)  # noqa: B023
        assert apart(in_order(ours), in_order(theirs)) == []
        assert len(theirs) >= 70


def test_under_budgets_as_many_of_each_tenant_are_refused_and_none_of_one_without(tmp_path: Path) -> None:
    """BLIS sees the end of a request when its last step begins: a few decisions are others."""
    run = peer_run("09_tenant_budgets")
    tenant_of = {str(row["request_id"]): row["tenant_id"] for row in run.sent}
    ours = Counter(tenant_of[one.request] for one in run.again(tmp_path))
    theirs = Counter(tenant_of[one.request] for one in run.served)
    assert len(run.refused["admission"]) == 78
    assert ours["gamma"] == theirs["gamma"] == Counter(tenant_of.values())["gamma"]
    for tenant in ("acme", "beta"):
        assert ours[tenant] == pytest.approx(theirs[tenant], abs=3)


def test_the_same_requests_are_evicted_and_all_others_answered(tmp_path: Path) -> None:
    run = peer_run("13_flow_eviction")
    ours = {one.request for one in run.again(tmp_path) if one.e2e_us > 0}
    theirs = {one.request for one in run.served if one.e2e_us > 0}
    everything = {str(row["request_id"]) for row in run.sent}
    assert everything - theirs == run.evicted.keys()
    assert ours == theirs
    assert len(run.evicted) == 29


@pytest.mark.parametrize("name", ["11_flow_priority_shed_shed", "12_flow_slo_deadline"])
def test_at_a_gateway_that_counts_requests_in_flight_as_many_are_served_and_wait_as_long(
    name: str, tmp_path: Path
) -> None:
    """BLIS sees the end of a request when its last step begins, a step before it is seen here."""
    run = peer_run(name)
    ours = run.again(tmp_path)
    assert len(ours) == pytest.approx(len(run.served), rel=0.02)
    for figure, within in (("gateway_queue_delay_us", 0.05), ("e2e_us", 0.05)):
        theirs = mean(getattr(one, figure) for one in run.served)
        assert mean(getattr(one, figure) for one in ours) == pytest.approx(theirs, rel=within)


def test_the_detectors_say_the_same_of_the_requests_that_were_served(tmp_path: Path) -> None:
    """Those that were rejected are unknown to BLIS's; ours count them as not answered."""
    run = peer_run("08_gaie_legacy")
    served = {int(one.request) for one in run.served}
    (tmp_path / "sat.yaml").write_text(run.detectors["config"])
    report = tmp_path / "report.json"
    words = ("--detectors", "all", "--saturation-config", str(tmp_path / "sat.yaml"))
    words += ("--saturation-report", str(report), "--saturation-final-window", "1s")
    run.again(tmp_path, *words, keep=lambda row: row["request_id"] in served)
    found = json.loads(report.read_text())
    assert found["final"] == run.detectors["final"]
    entries = zip(found["trace"], run.detectors["trace"], strict=False)
    for mine, (time_us, detector, level, score) in entries:
        assert mine["detector"] == detector
        assert abs(mine["timestamp"] - time_us) <= 1
        assert mine["result"]["level"] == level
        assert mine["result"]["score"] == pytest.approx(score, rel=1e-9, abs=1e-9)
    assert len(run.detectors["trace"]) == 300
