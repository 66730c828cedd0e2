"""Parts of the gateway and of what records it by themselves: counts, targets, victims, reasons."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blis_py.cluster.flow_settings import FlowSettings
from blis_py.cluster.ingress.dispatch_order import Waiting, by_patience, by_target
from blis_py.cluster.ingress.gateway import Gateway
from blis_py.cluster.ingress.gateway_queue import GatewayQueue
from blis_py.cluster.instances.evictable import Evictable
from blis_py.cluster.recording.diffusion_recorder import _emitting
from blis_py.cluster.recording.recorder import Recorder
from blis_py.cluster.routing.pair_dispatcher import RoutedPrefill
from blis_py.cluster.time.clock import SimClock
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.core.checks import _check
from blis_py.core.request import NEVER_NS, Request
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays
from blis_py.requests.table import RequestTable

NO_DELAYS = FrontendDelays()


def waiting(number: int = 0, band: int = 0, since_ns: int = 0, target_ns: int = -1) -> Waiting:
    return Waiting(Request(f"r{number}", 0, 1), since_ns, number, band, "", target_ns)


@pytest.mark.parametrize("band", [4, 3, 0, -1, -3])
def test_a_request_is_urgent_from_its_entry_to_its_exit_unless_it_is_sheddable(band: int) -> None:
    queue = GatewayQueue(FlowSettings(saturation_detector="concurrency"))
    entered = [waiting(number, band) for number in range(3)]
    for number, one in enumerate(entered, start=1):
        queue.add(one)
        assert queue.urgent == (number if band >= 0 else 0)
    for left, one in zip((2, 1, 0), entered, strict=True):
        queue.remove(one)
        assert (len(queue), queue.urgent) == (left, left if band >= 0 else 0)


def test_a_target_counts_from_the_entry_into_the_queue() -> None:
    early, late = waiting(since_ns=100, target_ns=90), waiting(since_ns=200, target_ns=20)
    assert (by_target(early), by_target(late)) == (190, 220)
    assert by_target(waiting(since_ns=100)) == NEVER_NS


def test_patience_is_a_deadline_already() -> None:
    one = waiting(since_ns=100)
    assert by_patience(one) == NEVER_NS
    one.request.deadline_ns = 150
    assert by_patience(one) == 150


@pytest.mark.parametrize(("coming_ns", "safe_ns"), [(0, 5), (70, 75), (NEVER_NS, NEVER_NS)])
def test_a_gateway_is_safe_until_its_delay_after_the_next_arrival(coming_ns: int, safe_ns: int) -> None:
    source: Any = SimpleNamespace(listens=False, safe_until_ns=lambda: coming_ns)
    events = SimClock().events
    gateway = Gateway(events, source, 5, lambda due: None, Lookahead(NEVER_NS))
    assert gateway.safe_until_ns() == safe_ns


class Cancelled:
    """In place of the instances: evicts all requests but those between two of them."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.between: set[str] = set()

    def evict(self, request: Request, why: str, now_ns: int) -> bool:
        if request.id in self.between:
            return False
        self.requests.append(request.id)
        return True


@pytest.fixture
def instance() -> Cancelled:
    return Cancelled()


def in_flight(instance: Any, *priorities: int) -> tuple[Evictable, list[Request]]:
    found = Evictable(instance.evict, list(priorities))
    requests = []
    for row in range(len(priorities)):
        request = Request(f"r{row}", 0, 1)
        request.row = row
        found.sent(request)
        requests.append(request)
    return found, requests


def test_the_least_urgent_is_evicted_and_among_equals_the_latest(instance: Cancelled) -> None:
    evictable, _ = in_flight(instance, -1, -3, -3, 3, -2)
    while evictable.evict("why", 0):
        pass
    assert instance.requests == ["r2", "r1", "r4", "r0"]
    assert evictable.leaving == 4


def test_a_request_that_has_ended_is_no_victim(instance: Cancelled) -> None:
    evictable, requests = in_flight(instance, -1, -1, -1)
    evictable.ended(requests[2])
    assert evictable.evict("why", 0)
    assert instance.requests == ["r1"]
    evictable.ended(requests[1])
    assert evictable.leaving == 0
    evictable.ended(requests[0])
    assert not evictable.evict("why", 0)


def test_one_whose_client_has_timed_out_leaves_anyway(instance: Cancelled) -> None:
    evictable, requests = in_flight(instance, -1, -1)
    requests[1].deadline_ns = 50
    assert evictable.evict("why", 50)
    assert instance.requests == ["r0"]


def test_one_between_two_instances_is_evicted_later(instance: Cancelled) -> None:
    evictable, _ = in_flight(instance, -1, -1)
    instance.between = {"r1"}
    assert evictable.evict("why", 0)
    instance.between = set()
    assert evictable.evict("why", 0)
    assert instance.requests == ["r0", "r1"]


@pytest.mark.parametrize(
    ("name", "most"), [("kv_cache_util_threshold", 1.0), ("queue_depth_threshold", 1e15)]
)
def test_a_threshold_has_a_largest_value(name: str, most: float) -> None:
    (limits,) = [field.metadata for field in fields(FlowSettings) if field.name == name]
    _check(name, most, limits)
    with pytest.raises(InputError, match="must be at most"):
        _check(name, most * 1.5, limits)


def test_victims_are_remembered_no_longer_than_they_are_in_flight() -> None:
    """One of many that come and go is in flight all the time."""
    evictable = Evictable(lambda *_: True, [-1] * 10_000)
    for row in range(10_000):
        evictable.sent(Request(f"r{row}", row, 1, row=row))
        if row:
            evictable.ended(Request("", 0, 1, row=row))
    assert len(evictable._heap) < 100


def test_a_router_of_prefills_names_none_while_none_is_ready() -> None:
    signals: Any = SimpleNamespace(ready=[])
    router: Any = SimpleNamespace(looks_at_load=False)
    assert RoutedPrefill(router, signals).beside(Request("r", 0, 1), 3, 0) == -1


def test_reasons_of_rejections_are_listed_by_name() -> None:
    given = ["unknown model", "throttled", "no capacity", "queue full", "evicted", "too long"]
    count = len(given)
    requests = RequestTable.build(np.arange(count), np.full(count, 16), np.ones(count, dtype=int))
    recorder = Recorder(requests, NO_DELAYS)
    for row, why in enumerate(given):
        recorder.rejected(Request(f"r{row}", 0, 16, row=row), 5, why)
    reasons = recorder._reasons()
    assert reasons is not None
    assert reasons.names == ("", *sorted(given))
    assert reasons.to_list() == given


def test_rounds_that_committed_blocks_follow_each_other_except_for_gaps() -> None:
    request: Any = SimpleNamespace(gaps=[(3, 6)], first_tick=2, last_tick=8)
    assert list(_emitting(request)) == [2, 3, 6, 7, 8]
