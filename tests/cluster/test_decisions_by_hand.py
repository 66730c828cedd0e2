"""Decisions of single parts at their limits: admission, saturation, prefill elsewhere, order at a gateway."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.cluster.admission_settings import AdmissionSettings
from blis_py.cluster.flow_settings import FlowSettings
from blis_py.cluster.ingress.admission import (
    ADMISSION_POLICIES,
    NO_TOKENS,
    OVER_BUDGET,
    REJECT_ALL,
    SATURATED,
    TIER_SHED,
    TOO_LONG,
    AdmissionSetup,
    TenantBudgets,
)
from blis_py.cluster.ingress.dispatch_order import Waiting, by_patience, by_target
from blis_py.cluster.ingress.flow_control import FlowControl
from blis_py.cluster.ingress.saturation import SATURATION_DETECTORS
from blis_py.cluster.routing.deciders import DECIDERS
from blis_py.core.request import NEVER_NS, Request

SECOND = 10**9


class Signals:
    """What is known of three instances, the second of which is not ready."""

    count, block_size, reports = 3, 16, 5

    def __init__(self, **known: Any) -> None:
        self.ready, self.all_ready = [0, 2], False
        self.load = self.queue_depth = self.in_flight = [0, 99, 0]
        self.kv_utilization = [0.0, 9.0, 0.0]
        self.watched: list[str] = []
        vars(self).update(known)

    def watch_kv(self) -> None:
        self.watched.append("kv")

    def watch_prefixes(self) -> Any:
        return SimpleNamespace(held=lambda request: [(0b101, 1), (0b100, 3)])


def setup_of(priority: list[int], signals: Any = None, slots: int = 10, **settings: Any) -> AdmissionSetup:
    tenant = ["a", "b", "", "a", "a", "a"]
    given: Any = SimpleNamespace(
        settings=AdmissionSettings(**settings), signals=signals, priority=priority, tenant=tenant, slots=slots
    )
    return given  # type: ignore[no-any-return]


def request(row: int = 0, prompt_tokens: int = 1) -> Request:
    return Request(f"r{row}", 0, prompt_tokens, row=row)


def test_all_or_none_are_admitted() -> None:
    for name, why in (("always-admit", ""), ("reject-all", REJECT_ALL)):
        policy = ADMISSION_POLICIES[name](setup_of([0]))
        assert policy(request(), 0) == why
        assert not policy.looks_at_load


def test_a_bucket_is_full_at_first_and_refilled_up_to_its_capacity() -> None:
    bucket = ADMISSION_POLICIES["token-bucket"](
        setup_of([0], token_bucket_capacity=100, token_bucket_refill_rate=10)
    )
    steps = [
        *((0, 101, TOO_LONG), (0, 60, ""), (0, 41, NO_TOKENS), (0, 40, "")),
        *((SECOND, 11, NO_TOKENS), (SECOND, 10, ""), (2 * SECOND, 10, ""), (99 * SECOND, 100, "")),
        (99 * SECOND, 1, NO_TOKENS),
    ]
    assert [bucket(request(0, tokens), now_ns) for now_ns, tokens, _ in steps] == [why for *_, why in steps]


@pytest.mark.parametrize(
    ("load", "all_ready", "why"),
    [
        *(([3, 99, 2], False, ""), ([4, 99, 2], False, TIER_SHED), ([2, 99, 4], False, TIER_SHED)),
        *(([3, 4, 2], True, TIER_SHED), ([3, 3, 3], True, "")),
    ],
)
def test_under_load_only_urgent_classes_are_admitted(load: list[int], all_ready: bool, why: str) -> None:
    signals = Signals(load=load, all_ready=all_ready)
    policy = ADMISSION_POLICIES["tier-shed"](
        setup_of([2, 3, 1], signals, tier_shed_threshold=3, tier_shed_min_priority=2)
    )
    assert policy.looks_at_load
    assert [policy(request(row), 0) for row in range(3)] == ["", "", why]
    signals.ready = []
    assert policy(request(2), 0) == (why if all_ready else "")


@pytest.mark.parametrize(
    ("queued", "used", "saturation"),
    [
        ([5, 99, 5], [0.1, 9, 0.1], 1.0),
        ([5, 99, 4], [0.1, 9, 0.1], 0.9),
        ([0, 99, 0], [0.8, 9, 0.8], 1.0),
        ([10, 0, 0], [0.4, 0, 0.4], 1.25),
        ([2, 0, 0], [0.8, 0, 0.2], 0.625),
    ],
)
def test_saturation_is_the_mean_of_the_larger_share_of_a_threshold(
    queued: list[int], used: list[float], saturation: float
) -> None:
    signals = Signals(queue_depth=queued, kv_utilization=used)
    policy: Any = ADMISSION_POLICIES["gaie-legacy"](
        setup_of([-1, 0], signals, gaie_qd_threshold=5, gaie_kv_threshold=0.8)
    )
    assert policy.saturation() == pytest.approx(saturation)
    assert [policy(request(row), 0) for row in range(2)] == [SATURATED if saturation >= 1 else "", ""]
    flow: Any = FlowSettings(queue_depth_threshold=5, kv_cache_util_threshold=0.8)
    known: Any = signals
    detector = SATURATION_DETECTORS["utilization"](flow, known)
    assert detector(0) == pytest.approx(saturation)
    signals.queue_depth = [500, 0, 500]
    assert detector(0) == pytest.approx(saturation)  # up to the next report
    signals.reports = 6
    assert detector(0) == 100
    assert signals.watched == ["kv", "kv"]
    signals.ready = []
    signals.reports = 7
    assert (detector(0), policy.saturation()) == (0, 0)


def test_concurrency_is_the_share_of_what_ready_instances_may_have() -> None:
    signals: Any = Signals()
    flow = FlowSettings(max_concurrency_per_instance=4)
    detector = SATURATION_DETECTORS["concurrency"](flow, signals)
    assert [detector(number) for number in (0, 2, 8, 10)] == [0, 0.25, 1, 1.25]
    signals.ready.clear()
    assert detector(5) == 0
    assert SATURATION_DETECTORS["never"](flow, signals)(99) == 0


def test_a_tenant_over_its_share_has_its_sheddable_requests_rejected() -> None:
    """A fifth of ten slots is two: the third is admitted, and with three in progress no other."""
    setup = setup_of([-1, -1, -1, 0, -1, -1], tenant_budgets={"a": 0.2})
    refused: list[str] = []

    def then(one: Request, now_ns: int) -> str:
        return "no" if one.id in refused else ""

    budgets = TenantBudgets(setup, then)  # type: ignore[arg-type]
    assert [budgets(request(row), 0) for row in (0, 0, 0, 0, 1, 2, 3)] == [
        *("", "", "", OVER_BUDGET, "", "", ""),
    ]
    for row in (0, 1, 2, 0):
        budgets.ended(request(row), 0)
    refused.append("r4")
    assert budgets(request(4), 0) == "no"  # it is not in progress
    assert budgets(request(5), 0) == ""
    assert budgets(request(5), 0) == OVER_BUDGET


@pytest.mark.parametrize(
    ("decider", "prompt_tokens", "decode", "apart"),
    [
        *(("always", 1, 0, True), ("never", 999, 0, False)),
        *(("prefix-threshold", 66, 0, False), ("prefix-threshold", 67, 0, True)),  # 16 of them are cached
        *(("prefix-threshold", 50, 1, False), ("prefix-threshold", 51, 1, True)),
        *(("prefix-threshold", 98, 2, False), ("prefix-threshold", 99, 2, True)),
        *(("load", 1, 0, False), ("load", 1, 1, True), ("load", 1, 2, True)),
    ],
)
def test_a_prompt_is_computed_elsewhere_as_decided(
    decider: str, prompt_tokens: int, decode: int, apart: bool
) -> None:
    settings: Any = SimpleNamespace(threshold_tokens=50, load_threshold=3)
    signals: Any = Signals(in_flight=[2, 3, 4])
    decides = DECIDERS[decider](settings, signals)
    assert decides(request(0, prompt_tokens), decode) == apart
    assert decides.looks_at_load == (decider in ("load", "prefix-threshold"))


@pytest.mark.parametrize(("deadline_ns", "target_ns"), [(-1, -1), (0, 0), (7, 7)])
def test_a_deadline_and_a_target_may_be_at_once(deadline_ns: int, target_ns: int) -> None:
    waiting = Waiting(Request("r", 0, 1), 3, 0, 0, "", target_ns)
    waiting.request.deadline_ns = deadline_ns
    assert by_patience(waiting) == (NEVER_NS if deadline_ns < 0 else deadline_ns)
    assert by_target(waiting) == (NEVER_NS if target_ns < 0 else 3 + target_ns)


@pytest.mark.parametrize(
    ("deadline_ns", "now_ns", "ends"),
    [(0, 0, "timed out"), (5, 5, "timed out"), (5, 4, "dropped"), (-1, 9, "dropped")],
)
def test_a_request_leaves_the_queue_by_its_deadline_or_the_gateways_limit(
    deadline_ns: int, now_ns: int, ends: str
) -> None:
    ended: list[str] = []
    waiting: Any = SimpleNamespace(gone=False, request=SimpleNamespace(deadline_ns=deadline_ns))
    flow: Any = SimpleNamespace(
        _leave=lambda one, at_ns: ended.append("left"),
        _recorder=SimpleNamespace(timed_out=lambda one, at_ns: ended.append("timed out")),
        _drop=lambda one, at_ns, why: ended.append("dropped"),
        _lookahead=SimpleNamespace(look=lambda: ended.append("looked")),
    )
    FlowControl._expired(flow, waiting, now_ns)
    assert ended == ["left", ends, "looked"]
    waiting.gone = True
    FlowControl._expired(flow, waiting, now_ns)
    assert len(ended) == 3
