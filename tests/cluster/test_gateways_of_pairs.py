"""Admission, flow control and eviction in front of prefill and decode pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from cluster_runs import Row, table_of

import blis_py as blis
from blis_py.cluster.ingress.saturation import Concurrency
from blis_py.cluster.simulation import ClusterSimulation
from blis_py.metrics.invariants import check
from blis_py.metrics.record import Outcome, RunRecord

ENGINES = ["vllm", "sglang", "trtllm", "blis"]
PAIRS = {"model": "qwen3-14b", "gpu": "h100", "prefill_instances": 2, "decode_instances": 2}
MIXED = ("critical", "sheddable", "sheddable")
LOOKING: dict[str, dict[str, Any]] = {
    "tier-shed": {"admission_policy": "tier-shed", "tier_shed_threshold": 3},
    "gaie-legacy": {"admission_policy": "gaie-legacy", "gaie_qd_threshold": 1},
    "tenant-budgets": {"tenant_budgets": {"a": 0.01}},
}


def rows(classes: Sequence[str] = ("",), output: int = 40, gap_us: int = 5000) -> list[Row]:
    """120 prompts of 700 tokens, as many apart."""
    return [
        Row(gap_us * number, 700, output, output, classes[number % len(classes)], "a")
        for number in range(120)
    ]


def simulation(requests: list[Row], **settings: Any) -> ClusterSimulation:
    cluster = blis.build(**(PAIRS | settings)).cluster()
    return ClusterSimulation(table_of(requests), cluster, seed=1)


def recorded(requests: list[Row], **settings: Any) -> RunRecord:
    record = simulation(requests, **settings).run()
    check(record)
    return record


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("admission", LOOKING)
def test_admission_that_looks_at_load_sees_hand_overs_as_they_happen(engine: str, admission: str) -> None:
    record = recorded(rows(MIXED), engine=engine, **LOOKING[admission])
    assert set(record.outcome.tolist()) <= {Outcome.COMPLETED, Outcome.LENGTH_CAPPED, Outcome.REJECTED}


@pytest.mark.parametrize("engine", ENGINES)
def test_admission_sees_prompts_that_wait_at_the_prefill_side(engine: str) -> None:
    """All sheddable requests but the first few are rejected while one prefill instance has them all."""
    settings = {"prefill_instances": 1, "decode_instances": 3, "tier_shed_threshold": 4}
    record = recorded(
        rows(["sheddable"], gap_us=100), engine=engine, admission_policy="tier-shed", **settings
    )
    assert (record.outcome == Outcome.REJECTED).sum() > 60


@pytest.mark.parametrize("engine", ENGINES)
def test_the_concurrency_detector_counts_each_request_once(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two and two instances of ten each hold back from forty requests on, wherever these are."""
    running = simulation(
        rows(output=400),
        engine=engine,
        flow_control=True,
        saturation_detector="concurrency",
        max_concurrency_per_instance=10,
    )
    saturations: list[float] = []
    saturation = Concurrency.__call__

    def noted(detector: Concurrency, in_flight: int) -> float:
        saturations.append(saturation(detector, in_flight))
        return saturations[-1]

    monkeypatch.setattr(Concurrency, "__call__", noted)
    record = running.run()
    check(record)
    assert max(saturations) == 1.0
    assert record.gateway_ns is not None
    assert (record.gateway_ns > 0).nonzero()[0].min() == 40


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("most", [1, 2, 4])
def test_an_evicted_request_leaves_at_the_side_where_it_is(engine: str, most: int) -> None:
    record = recorded(
        rows(MIXED),
        engine=engine,
        flow_control=True,
        saturation_detector="concurrency",
        max_concurrency_per_instance=most,
        dispatch_order="priority",
        in_flight_eviction=True,
    )
    assert (record.outcome == Outcome.EVICTED).any()
    assert set(record.outcome.tolist()) <= {Outcome.COMPLETED, Outcome.LENGTH_CAPPED, Outcome.EVICTED}


@pytest.mark.parametrize("engine", ["sglang", "trtllm", "vllm"])
def test_a_decode_rank_admits_by_its_own_places(engine: str) -> None:
    """What another rank of the instance runs takes none of them."""
    places = 3 if engine == "sglang" else 6
    ranks = {"tp": 2, "attention_dp": 2, "decode_instances": 1, "max_num_seqs": places}
    record = recorded(rows(output=2), engine=engine, **ranks)
    assert (record.outcome == Outcome.COMPLETED).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_no_visit_emits_after_it_finishes(engine: str) -> None:
    visits = blis.run(**PAIRS, engine=engine, num_requests=20, output_tokens=9).visits
    emitting = visits.dropna(subset=["first_token_s"])
    assert len(emitting) >= 20
    assert (emitting["first_token_s"] <= emitting["finish_s"]).all()
    assert (emitting["last_token_s"] <= emitting["finish_s"]).all()
