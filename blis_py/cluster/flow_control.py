"""Flow control: requests wait at the gateway while the cluster is saturated, instead of at an instance.

gateway (admission) -> flow control -> dispatcher (router)

Who waits is looked at again when what it depends on can have changed: with an arrival, and with the end of a
request or a report of the instances, whichever the saturation detector goes by; or, as by BLIS, at regular
ticks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from blis_py.cluster.admission import AdmissionSetup
from blis_py.cluster.dispatch_order import Waiting
from blis_py.cluster.events import EXAMINATIONS, EXPIRIES, EventQueue
from blis_py.cluster.evictable import Evictable
from blis_py.cluster.flow_settings import FlowSettings
from blis_py.cluster.gateway import Dispatch
from blis_py.cluster.gateway_queue import GatewayQueue
from blis_py.cluster.instance import Instance
from blis_py.cluster.outlook import NOT_AT_ALL_NS, Outlook
from blis_py.cluster.recorder import Recorder
from blis_py.cluster.saturation import detector
from blis_py.core.request import NEVER_NS, Request
from blis_py.core.slo import DEFAULT_CLASS

TTL, EVICTED = "gateway ttl", "evicted in flight"
SHED: Final = "shed for {}"
"""With the SLO class of whom it was shed for."""


class FlowControl:
    """The gateway queue at work. As a `Dispatch` it takes the place of the dispatcher behind it.

    Of the same nanosecond, arrivals come before requests that have waited too long, and these before
    another look at who may go. An end is seen by the first look after it, a nanosecond later at the earliest.

    Args:
        setup: what is known of requests and instances.
        routing_ns: from leaving the queue to the dispatch.
        closed: nobody looks ahead at all, since what comes before it must not.
    """

    def __init__(
        self,
        events: EventQueue,
        settings: FlowSettings,
        setup: AdmissionSetup,
        instances: Sequence[Instance],
        routing_ns: int,
        dispatch: Dispatch,
        outlook: Outlook,
        recorder: Recorder,
        closed: bool = False,
    ) -> None:
        self._events, self._routing_ns, self._dispatch = events, routing_ns, dispatch
        self._outlook, self._recorder, self._closed = outlook, recorder, closed
        self._signals, self._priority, self._tenant = setup.signals, setup.priority, setup.tenant
        self._table = recorder.table
        self._ttl_ns, self._targets_ns = settings.request_ttl_ns, settings.slo_targets_ns
        self._queue = GatewayQueue(settings)
        self._saturation = saturation = detector(settings.saturation_detector)(settings, setup.signals)
        self._evictable = Evictable(instances, setup.priority) if settings.in_flight_eviction else None
        self._tick_ns = settings.dispatch_tick_interval_ns
        live = saturation.reads_reports and not self._signals.refresh_ns
        self._after_ends = self._tick_ns is None and (saturation.counts_in_flight or live)
        self._after_reports = self._tick_ns is None and saturation.reads_reports and not live
        self._looks = saturation.counts_in_flight or saturation.reads_reports
        self._came = 0
        self._coming: deque[tuple[int, Request]] = deque()
        """Sent here ahead of their time."""
        self._on_the_way: deque[tuple[int, Request]] = deque()
        """Out of the queue and not yet dispatched."""
        self._next_ns = NEVER_NS
        """When to look again, as far as that is known."""
        recorder.keep_waits()
        recorder.tell(self.ended)
        if self._looks:
            self._signals.watch()
        if live and self._tick_ns is None:
            self._signals.ring(self._changed)

    def __call__(self, due: Sequence[tuple[int, Request]]) -> None:
        """Requests come, each at its time, in this order."""
        for now_ns, request in due:
            if now_ns > self._events.now_ns:
                self._coming.append((now_ns, request))
                self._events.call_at(now_ns, self._arrived)
            else:
                self._take_in(now_ns, request)
        self._outlook.look()

    def quiet_until_ns(self) -> int:
        """See `blis_py.cluster.outlook.Part`."""
        if self._closed or (self._queue and self._after_ends):
            return NOT_AT_ALL_NS
        quiet_ns = self._next_ns - 1 if self._queue else NEVER_NS
        for due in (self._coming, self._on_the_way):
            if due:
                quiet_ns = min(quiet_ns, due[0][0] - 1)
        return quiet_ns

    def ended(self, request: Request, seen_ns: int) -> None:
        """A request is in flight no more, or never was."""
        if self._recorder.instance[request.visit] < 0:
            return
        if self._evictable is not None:
            self._evictable.ended(request)
        if self._queue and self._after_ends:
            self._look_at(self._events.now_ns + 1)

    # -- coming --------------------------------------------------------------------------------------

    def _arrived(self, now_ns: int) -> None:
        self._take_in(*self._coming.popleft())
        self._outlook.look()

    def _take_in(self, now_ns: int, request: Request) -> None:
        """It waits, if only for this moment, or is refused."""
        self._send_until(now_ns)
        priority = self._priority[request.row]
        why = self._queue.refusal(priority)
        if why:
            self._drop(request, now_ns, why)
            return
        if self._queue.is_full:
            victim = self._queue.victim(priority)
            assert victim is not None
            self._leave(victim, now_ns)
            self._drop(victim.request, now_ns, SHED.format(self._class_of(request)))
        waiting = self._waiting(request, now_ns)
        self._queue.add(waiting)
        self._recorder.queued(request, now_ns)
        self._attempt(now_ns)
        if not waiting.gone:
            self._expect_end_of_patience(waiting)

    def _waiting(self, request: Request, now_ns: int) -> Waiting:
        row = request.row
        self._came += 1
        target_ns = int(self._table.slo_target_ns[row]) or self._targets_ns.get(self._class_of(request), -1)
        tenant = self._tenant[row] or "default"
        return Waiting(request, now_ns, self._came, self._priority[row], tenant, target_ns)

    def _class_of(self, request: Request) -> str:
        return self._table.slo_class[request.row] or DEFAULT_CLASS

    # -- waiting too long ----------------------------------------------------------------------------

    def _expect_end_of_patience(self, waiting: Waiting) -> None:
        """The gateway's, or the client's."""
        deadline_ns = waiting.request.deadline_ns
        until_ns = waiting.since_ns + self._ttl_ns if self._ttl_ns else NEVER_NS
        if deadline_ns >= 0:
            until_ns = min(until_ns, max(deadline_ns, waiting.since_ns))
        if until_ns < NEVER_NS:
            self._events.call_at(until_ns, partial(self._expired, waiting), EXPIRIES)

    def _expired(self, waiting: Waiting, now_ns: int) -> None:
        if waiting.gone:
            return
        request = waiting.request
        self._leave(waiting, now_ns)
        if 0 <= request.deadline_ns <= now_ns:
            self._recorder.gave_up(request, now_ns)
        else:
            self._drop(request, now_ns, TTL)
        self._outlook.look()

    # -- going ---------------------------------------------------------------------------------------

    def _attempt(self, now_ns: int) -> None:
        """Dispatches who can be dispatched; with ticks, one request."""
        if self._tick_ns is not None:
            self._look_at(now_ns + self._tick_ns)  # unless one is to come
            self._act(now_ns)
            return
        while self._act(now_ns):
            pass
        if self._queue and self._after_reports:
            self._look_at(self._signals.reported_ns + self._signals.refresh_ns)

    def _act(self, now_ns: int) -> bool:
        """One request leaves the queue, or an instance for one in the queue; whether there was any."""
        if not self._queue:
            return False
        self._look(now_ns)
        saturation = self._saturation(self._in_flight())
        if saturation >= 1 and self._evicts(now_ns):
            return True
        waiting = self._queue.next(saturation)
        if waiting is None:
            return False
        self._leave(waiting, now_ns, served=True)
        self._on_the_way.append((now_ns + self._routing_ns, waiting.request))
        if self._routing_ns:
            self._events.call_at(now_ns + self._routing_ns, self._send_until)
        else:
            self._send_until(now_ns)
        return True

    def _in_flight(self) -> int:
        """As the gateway counts: with those on the way, without those it has told to leave."""
        leaving = 0 if self._evictable is None else self._evictable.leaving
        return self._signals.total_in_flight + len(self._on_the_way) - leaving

    def _evicts(self, now_ns: int) -> bool:
        """Whether somebody is told to leave for one who waits and may not be shed."""
        evictable = self._evictable
        if evictable is None or not self._queue.urgent:
            return False
        if not self._saturation.counts_in_flight and evictable.leaving >= self._queue.urgent:
            return False  # there will be room, which is not seen yet
        request = evictable.evict(now_ns)
        if request is None:
            return False
        self._recorder.evicted(request, EVICTED)
        return True

    def _send_until(self, now_ns: int) -> None:
        """Dispatches those whose time has come."""
        on_the_way = self._on_the_way
        while on_the_way and on_the_way[0][0] <= now_ns:
            due = on_the_way.popleft()
            self._dispatch([due])
            if self._evictable is not None:
                self._evictable.sent(due[1], int(self._recorder.instance[due[1].visit]))

    def _leave(self, waiting: Waiting, now_ns: int, served: bool = False) -> None:
        self._queue.remove(waiting, served)
        self._recorder.left_gateway(waiting.request, now_ns)

    def _drop(self, request: Request, now_ns: int, why: str) -> None:
        self._recorder.rejected(request, now_ns, why)
        if self._recorder.on_end is not None:
            self._recorder.on_end(request, now_ns)

    # -- looking again -------------------------------------------------------------------------------

    def _look(self, now_ns: int) -> None:
        if self._looks:
            self._signals.look_at_load(now_ns)

    def _changed(self) -> None:
        """Something has happened at an instance, and reports are live."""
        if self._queue:
            self._look_at(self._events.now_ns + 1)

    def _look_at(self, time_ns: int) -> None:
        if time_ns < self._next_ns:
            self._next_ns = time_ns
            self._events.call_at(time_ns, self._look_again, EXAMINATIONS)

    def _look_again(self, now_ns: int) -> None:
        if now_ns != self._next_ns:
            return  # it was done earlier
        self._next_ns = NEVER_NS
        if self._queue:
            self._send_until(now_ns)
            self._attempt(now_ns)
        self._outlook.look()
