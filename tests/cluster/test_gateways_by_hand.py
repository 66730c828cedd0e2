"""Gateways step by step: when requests are decided, sent on, dispatched; ends that come before the step's."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.cluster.ingress.admission_gateway import AdmissionGateway
from blis_py.cluster.ingress.early_ends import EarlyEnds
from blis_py.cluster.ingress.gateway import Gateway
from blis_py.cluster.time.events import EventQueue
from blis_py.cluster.time.lookahead import NOT_AT_ALL_NS, Lookahead
from blis_py.core.request import NEVER_NS, PREFILLING, WAITING, Request


class Source:
    """A source of requests: the next arrival, and the ends it hears of."""

    def __init__(self, coming_ns: int = NEVER_NS, listens: bool = False, network: Any = None) -> None:
        self.coming_ns, self.listens = coming_ns, listens
        self.table = SimpleNamespace(network_ns=network)
        self.ends: list[tuple[str, int]] = []

    def safe_until_ns(self) -> int:
        return self.coming_ns

    def ended(self, request: Request, now_ns: int) -> None:
        self.ends.append((request.id, now_ns))


def sent(*arrivals_ns: int) -> list[Request]:
    return [Request(f"r{number}", arrival_ns, 1, row=number) for number, arrival_ns in enumerate(arrivals_ns)]


class Dispatched:
    """What is dispatched: at which time of the events, for which time, and which requests."""

    def __init__(self, events: EventQueue) -> None:
        self.events, self.log = events, list[tuple[int, list[tuple[int, str]]]]()

    def __call__(self, due: Sequence[tuple[int, Request]]) -> None:
        self.log.append((self.events.now_ns, [(time_ns, one.id) for time_ns, one in due]))


@pytest.mark.parametrize(("delay_ns", "is_open"), [(0, False), (5, True)])
def test_requests_pass_a_gateway_at_once_without_a_delay_or_ahead_of_time(
    delay_ns: int, is_open: bool
) -> None:
    events, lookahead = EventQueue(), Lookahead(none_ahead=not is_open)
    log = Dispatched(events)
    Gateway(events, Source(), delay_ns, log, lookahead).receive(sent(10, 20))  # type: ignore[arg-type]
    assert log.log == [(0, [(10 + delay_ns, "r0"), (20 + delay_ns, "r1")])]


def test_requests_wait_in_a_gateway_for_their_delay() -> None:
    events = EventQueue()
    log, source = Dispatched(events), Source(100)
    gateway = Gateway(events, source, 5, log, Lookahead(none_ahead=True))  # type: ignore[arg-type]
    assert gateway.safe_until_ns() == 105
    gateway.receive(sent(10, 20))
    assert gateway.safe_until_ns() == 14
    events.run()
    assert log.log == [(15, [(15, "r0")]), (25, [(25, "r1")])]
    assert gateway.safe_until_ns() == 105
    source.listens = True
    assert gateway.safe_until_ns() == NOT_AT_ALL_NS


class Way:
    """An admission gateway and all around it; requests on the list are refused."""

    def __init__(
        self,
        admission_ns: int = 3,
        routing_ns: int = 4,
        looks: bool = False,
        ahead: bool = False,
        end_ns: int = NEVER_NS,
        listens: bool = False,
        refused: Sequence[str] = (),
    ) -> None:
        self.events, self.looked = EventQueue(), list[int]()
        self.log, self.source = Dispatched(self.events), Source(100, listens)
        self.rejected: list[tuple[str, int, str]] = []
        self.watched: list[bool] = []

        class Admit:
            looks_at_load = looks

            def __call__(self, request: Request, now_ns: int) -> str:
                return "no" if request.id in refused else ""

        signals: Any = SimpleNamespace(look=self.looked.append, watch=lambda: self.watched.append(True))
        recorder: Any = SimpleNamespace(
            rejected=lambda request, now_ns, why: self.rejected.append((request.id, now_ns, why))
        )
        self.lookahead = Lookahead(end_ns, none_ahead=not ahead)
        source: Any = self.source
        self.gateway = AdmissionGateway(
            self.events,
            source,
            admission_ns,
            routing_ns,
            self.log,
            self.lookahead,
            Admit(),
            signals,
            recorder,
        )


def test_what_does_not_look_at_load_is_decided_at_once() -> None:
    way = Way(refused=["r1"], ahead=True)
    way.gateway.receive(sent(10, 20, 30))
    assert way.log.log == [(0, [(17, "r0"), (37, "r2")])]
    assert way.rejected == [("r1", 23, "no")]
    assert (way.watched, way.looked, way.source.ends) == ([], [], [])
    assert way.gateway.safe_until_ns() == 107
    listening = Way(refused=["r0"], listens=True)
    listening.gateway.receive(sent(10))
    assert listening.source.ends == [("r0", 13)]


def test_what_looks_at_load_is_decided_behind_the_admission_and_sent_behind_the_routing() -> None:
    way = Way(looks=True, refused=["r1"])
    assert way.watched == [True]
    assert way.gateway.safe_until_ns() == 103
    way.gateway.receive(sent(10, 12, 20))
    assert way.log.log == []
    way.events.run(14)
    assert way.looked == [13]
    assert way.gateway.safe_until_ns() == 16
    way.events.run()
    assert way.looked == [13, 15, 23]
    assert way.log.log == [(17, [(17, "r0")]), (27, [(27, "r2")])]
    assert way.rejected == [("r1", 15, "no")]
    at_once = Way(0, 0, looks=True)
    at_once.gateway.receive(sent(0, 0))
    assert at_once.log.log == [(0, [(0, "r0")]), (0, [(0, "r1")])]


def test_no_request_is_admitted_whose_dispatch_comes_behind_the_end_of_the_run() -> None:
    way = Way(ahead=True, end_ns=20, refused=["r2"])
    way.gateway.receive(sent(13, 14, 17, 18))
    assert way.log.log == [(0, [(20, "r0")])]
    assert way.rejected == [("r2", 20, "no")]  # the last one comes behind the end


# -- early ends --------------------------------------------------------------------------------------------


class Ends:
    """Early ends of one instance that drops what it is to drop."""

    def __init__(self, ready_ns: int = 30, network: Any = None, place: int = 0, moved: bool = False) -> None:
        self.events, self.source = EventQueue(), Source(network=network)
        self.drops = True
        instance = SimpleNamespace(most_tokens=10, will_drop=lambda request: self.drops)
        recorder: Any = SimpleNamespace(
            ready_ns=[ready_ns] * 3, instance=[place] * 3, has_moved=lambda row: moved
        )
        given: Any = (self.events, recorder, [instance], self.source)
        self.ends = EarlyEnds(*given)


def one(prompt_tokens: int = 4, max_tokens: int = 6, deadline_ns: int = -1) -> Request:
    request = Request("r", 0, prompt_tokens, row=1, max_tokens=max_tokens)
    request.deadline_ns = deadline_ns
    return request


@pytest.mark.parametrize(
    ("request_", "ended_ns"),
    [
        (one(), None),
        (one(4, 7), 30),  # it can never be served
        (one(9, 0), None),
        (one(10, 0), 30),
        (one(deadline_ns=50), 50),
        (one(deadline_ns=0), 30),
        (one(4, 7, deadline_ns=50), 30),
    ],
)
def test_an_end_that_is_foreseen_is_reported_at_its_time(request_: Request, ended_ns: int | None) -> None:
    found = Ends()
    found.ends.sent([request_])
    found.events.run()
    assert found.source.ends == ([] if ended_ns is None else [("r", ended_ns)])
    found.ends.ended(request_, 77)
    assert len(found.source.ends) == 1  # by one of the two
    found.ends.ended(request_, 88)
    assert len(found.source.ends) == 2


@pytest.mark.parametrize(("now_ns", "ended_ns"), [(10, 30), (60, 60)])
def test_an_evicted_request_ends_when_it_has_reached_its_instance(now_ns: int, ended_ns: int) -> None:
    found = Ends()
    found.events.now_ns = now_ns
    found.ends.evicted(one())
    found.events.run()
    assert found.source.ends == [("r", ended_ns)]


@pytest.mark.parametrize("case", ["handled", "elsewhere", "moved", "kept"])
def test_an_end_is_reported_later_where_it_is_not_certain(case: str) -> None:
    found = Ends(place=-1 if case == "elsewhere" else 0, moved=case == "moved")
    found.drops = case != "kept"
    request = one(deadline_ns=50)
    found.ends.sent([request])
    if case == "handled":
        found.ends.ended(request, 40)
    found.events.run()
    assert found.source.ends == ([("r", 40)] if case == "handled" else [])


@pytest.mark.parametrize(
    ("status", "generated", "reported"), [(WAITING, 0, True), (WAITING, 1, False), (PREFILLING, 0, False)]
)
def test_with_a_network_only_requests_without_a_token_end_early(
    status: Any, generated: int, reported: bool
) -> None:
    found = Ends(network=[1])
    request = one(deadline_ns=50)
    request.status, request.generated = status, generated
    found.ends.sent([request])
    found.events.run()
    assert bool(found.source.ends) == reported
