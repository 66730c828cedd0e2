"""Routing, admission, flow control and hand-over decide by what a gateway sees, not by the output to come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from apart import requests
from apart import simulate as simulate_apart
from cluster_runs import Row, linear, table_of
from one_pool import simulate

from blis_py.cluster.admission_settings import AdmissionSettings
from blis_py.cluster.flow_settings import FlowSettings
from blis_py.cluster.ingress.admission import ADMISSION_POLICIES
from blis_py.cluster.ingress.dispatch_order import DISPATCH_ORDERS
from blis_py.cluster.ingress.fairness import FAIRNESS_POLICIES
from blis_py.cluster.ingress.saturation import SATURATION_DETECTORS
from blis_py.cluster.routing.deciders import DECIDERS
from blis_py.cluster.routing.policies import ROUTING_POLICIES
from blis_py.cluster.routing.router import RouterSetup
from blis_py.cluster.routing.scorers import SCORERS
from blis_py.core.config import SchedulerConfig
from blis_py.core.request import Request

US = 1000
CLASSES = ("critical", "standard", "batch", "sheddable", "background")
OUTPUTS = [40, 1, 17, 3, 25, 9, 2, 33, 5, 12, 7, 21]
CONFIG = SchedulerConfig(num_kv_blocks=400, max_model_len=1000, max_num_seqs=4)


def decisions(outputs: Sequence[int], **settings: Any) -> tuple[list[int], ...]:
    """Instances, and who is rejected: of requests that all come within the first step, of 100 us.

    So nothing that depends on their outputs has happened when they are decided about.
    """
    rows = [
        Row(3 * i, 8 + 16 * (i % 3), n, 50, CLASSES[i % 5], "ab"[i % 2], runs=((f"text {i % 4}", 8),))
        for i, n in enumerate(outputs)
    ]
    how = {"scheduler": CONFIG, "latency": linear(100 * US), "num_instances": 3, "snapshot_refresh_ns": 0}
    record = simulate(table_of(rows), **{**how, **settings})
    rejected = [] if record.rejection is None else np.flatnonzero(record.rejection.codes).tolist()
    return record.instance.tolist(), rejected


def are_blind(**settings: Any) -> bool:
    return decisions(OUTPUTS, **settings) == decisions(OUTPUTS[::-1], **settings)


@pytest.mark.parametrize("policy", [*ROUTING_POLICIES, *SCORERS])
def test_routing_is_the_same_whatever_outputs_come(policy: str) -> None:
    if policy in SCORERS:
        assert are_blind(routing_policy="weighted", routing_scorers={policy: 1.0})
    else:
        assert are_blind(routing_policy=policy)


@pytest.mark.parametrize("policy", ADMISSION_POLICIES)
def test_admission_is_the_same_whatever_outputs_come(policy: str) -> None:
    few = AdmissionSettings(token_bucket_capacity=100, gaie_qd_threshold=1, tenant_budgets={"a": 0.2})
    assert are_blind(admission_policy=policy, admission=few)


@pytest.mark.parametrize("detector", SATURATION_DETECTORS)
@pytest.mark.parametrize("order", DISPATCH_ORDERS)
@pytest.mark.parametrize("fairness", FAIRNESS_POLICIES)
def test_flow_control_dispatches_in_the_same_order_whatever_outputs_come(
    detector: str, order: str, fairness: str
) -> None:
    """All are in the gateway's queue before the first one ends; then they leave it one by one."""
    flow = FlowSettings(
        saturation_detector=detector,
        dispatch_order=order,
        fairness_policy=fairness,
        max_concurrency_per_instance=1,
        queue_depth_threshold=1,
        max_gateway_queue_depth=6,
        queue_shedding=True,
    )

    def dispatched(outputs: Sequence[int]) -> tuple[list[int], list[int]]:
        rows = [Row(i, 8, n, 50, CLASSES[i % 5], "ab"[i % 2]) for i, n in enumerate(outputs)]
        record = simulate(
            table_of(rows),
            scheduler=CONFIG,
            latency=linear(100 * US),
            flow_control=flow,
            snapshot_refresh_ns=0,
        )
        there = np.flatnonzero(record.instance >= 0)
        return there[np.argsort(record.enqueue_ns[there], kind="stable")].tolist(), there.tolist()

    assert dispatched(OUTPUTS) == dispatched(OUTPUTS[::-1])


@pytest.mark.parametrize("decider", DECIDERS)
def test_whether_and_where_a_prompt_is_handed_over_is_the_same_whatever_outputs_come(decider: str) -> None:
    """Prompts arrive within the first step."""

    def handed_over(outputs: Sequence[int]) -> list[list[int]]:
        table = requests(range(len(outputs)), [30, 60, 8, 50] * 3, [n + 1 for n in outputs])
        record = simulate_apart(
            table, "vllm", decider=decider, prefill=2, decode=2, policy="least-loaded", max_num_seqs=2
        )
        over = record.handovers
        assert over is not None
        rows = np.argsort(over.request)
        return [column[rows].tolist() for column in (over.request, over.prefill, over.decode)]

    assert handed_over(OUTPUTS) == handed_over(OUTPUTS[::-1])


class ByOutput:
    """A routing policy that knows too much."""

    looks_at_load = False

    def __init__(self, setup: RouterSetup) -> None:
        self._ready = setup.signals.ready

    def __call__(self, request: Request, now_ns: int) -> int:
        return self._ready[(request.output_tokens or 0) % len(self._ready)]


def test_a_policy_that_reads_the_output_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROUTING_POLICIES, "by-output", ByOutput)
    assert not are_blind(routing_policy="by-output")
