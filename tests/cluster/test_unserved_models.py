"""Requests for a model that no instance serves: they end at routing, and change nothing for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cluster_runs import LATENCIES, Row, Run, differences, linear, runs, table_of
from hypothesis import given, settings
from hypothesis import strategies as st
from one_pool import simulate

from blis_py.cluster.admission_settings import AdmissionSettings
from blis_py.cluster.ingress.closed_loop import ClosedLoop
from blis_py.cluster.routing.policies import ROUTING_POLICIES
from blis_py.core.config import SchedulerConfig
from blis_py.metrics import summarise
from blis_py.metrics.invariants import check
from blis_py.metrics.record import NOT_SERVED, Outcome, RunRecord
from blis_py.requests.table import Labels, RequestTable

US = 1_000
CONFIG = SchedulerConfig(num_kv_blocks=400, max_model_len=6_000, max_num_seqs=4)
ROWS = [Row(7 * number, 40 + 13 * (number % 5), 3 + number % 4) for number in range(30)]
MODELS = ["", "ours", "theirs"] * 10


def table(rows: Sequence[Row] = ROWS, models: Sequence[str] = MODELS) -> RequestTable:
    return replace(table_of(list(rows)), model=Labels.of(models))


def run(demand: Any, **given: Any) -> RunRecord:
    options: dict[str, Any] = {"scheduler": CONFIG, "latency": linear(10 * US), "served_models": {"ours"}}
    record = simulate(demand, **(options | given))
    check(record)
    return record


def rejected(record: RunRecord) -> list[bool]:
    return (record.outcome == Outcome.REJECTED).tolist()


@pytest.mark.parametrize("policy", ROUTING_POLICIES)
def test_the_others_are_served_as_if_these_had_never_come(policy: str) -> None:
    """Random ties included: the router is not called, so it draws no number."""
    all_requests = table()
    served = np.flatnonzero([name != "theirs" for name in MODELS])
    options: dict[str, Any] = {"num_instances": 3, "routing_policy": policy, "routing_latency_ns": 4 * US}
    record, alone = run(all_requests, **options), run(all_requests.take(served), **options)
    assert rejected(record) == [name == "theirs" for name in MODELS]
    assert record.instance[served].tolist() == alone.instance.tolist()
    assert record.finish_ns[served].tolist() == alone.finish_ns.tolist()


def test_they_are_rejected_when_they_would_have_been_routed_and_the_reason_is_reported() -> None:
    record = run(table(), admission_latency_ns=2 * US, routing_latency_ns=5 * US, num_instances=2)
    gone = np.flatnonzero(rejected(record))
    assert (record.finish_ns[gone] - record.table.arrival_ns[gone]).tolist() == [7 * US] * 10
    report = summarise(record)
    assert report["admission"]["by_reason"] == {NOT_SERVED: 10}
    assert report["cluster"]["requests"]["rejected"] == 10


def test_without_a_word_about_models_every_name_is_served() -> None:
    assert not any(rejected(run(table(), served_models=None)))


def test_in_a_closed_loop_they_give_their_permit_back() -> None:
    all_requests = table([replace(row, arrival_us=0) for row in ROWS])
    record = run(ClosedLoop(all_requests, concurrency=1))
    assert rejected(record) == [name == "theirs" for name in MODELS]
    served = ~np.array(rejected(record))
    arrival, finish = record.table.arrival_ns[served], record.finish_ns[served]
    assert (arrival[1:] >= finish[:-1]).all()


def test_a_tenants_budget_is_not_used_up_by_them() -> None:
    """Budget 0 admits one at a time: were the first under way for ever, the second would be refused."""
    rows = [
        Row(10, 40, 3, slo_class="batch", tenant="acme"),
        Row(20, 40, 3, slo_class="batch", tenant="acme"),
    ]
    settings = AdmissionSettings(tenant_budgets={"acme": 0.0})
    record = run(table(rows, ["theirs", "ours"]), admission=settings)
    assert record.outcome.tolist() == [Outcome.REJECTED, Outcome.COMPLETED]


def test_a_run_that_ends_before_they_are_routed_leaves_them_on_their_way() -> None:
    record = run(table([Row(5, 40, 3)], ["theirs"]), routing_latency_ns=10 * US, horizon_ns=8 * US)
    assert record.outcome.tolist() == [Outcome.QUEUED]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(runs(), st.randoms(use_true_random=False))
def test_in_random_runs_every_request_ends_once_and_jumping_changes_nothing(one: Run, draw: Any) -> None:
    models = [draw.choice(["", "ours", "theirs"]) for _ in one.rows]
    demand = replace(table_of(one.rows), model=Labels.of(models))
    common: dict[str, Any] = {"scheduler": one.config, "latency": LATENCIES[one.latency], **one.options}
    record, stepped = (run(demand, **common, single_step=steps) for steps in (False, True))
    assert differences(record, stepped) == []
    gone = np.array([name == "theirs" for name in models])
    assert (record.instance[gone[: len(record.table)]] < 0).all()
