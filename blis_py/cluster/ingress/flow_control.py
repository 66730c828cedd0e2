"""Flow control: while the cluster is saturated, requests wait at the gateway instead of at an instance.

gateway (admission) -> flow control -> dispatcher (router)

The queue is re-examined when its inputs may have changed: at each arrival, and at the end of a request or a
report of the instances, whichever the saturation detector reads; or, as in BLIS, at regular ticks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from blis_py.cluster.flow_settings import FlowSettings
from blis_py.cluster.ingress.admission import AdmissionSetup
from blis_py.cluster.ingress.dispatch_order import Waiting
from blis_py.cluster.ingress.gateway import Dispatch
from blis_py.cluster.ingress.gateway_queue import GatewayQueue
from blis_py.cluster.ingress.saturation import detector
from blis_py.cluster.instances.evictable import Evict, Evictable
from blis_py.cluster.recording.recorder import Recorder
from blis_py.cluster.time.events import EXAMINATIONS, EXPIRIES, EventQueue
from blis_py.cluster.time.lookahead import NOT_AT_ALL_NS, Lookahead
from blis_py.core.request import NEVER_NS, Request
from blis_py.core.slo import DEFAULT_CLASS

TTL, EVICTED = "gateway ttl", "evicted in flight"
SHED: Final = "shed for {}"
"""Format of the reason; takes the SLO class of the request that displaced it."""


class FlowControl:
    """The gateway queue and its event handling. As a `Dispatch` it replaces the dispatcher behind it.

    Within a nanosecond, arrivals come before expiries, and these before examinations of the queue. The end of
    a request is seen by the first examination after it, a nanosecond later at the earliest.

    Args:
        setup: the requests and the visible instance state.
        evict: evicts a request from the instance where it is.
        counted_twice: number of requests that two instances count as in flight.
        routing_ns: from leaving the queue to the dispatch.
        closed: no lookahead at all, because an earlier stage permits none.
    """

    def __init__(
        self,
        events: EventQueue,
        settings: FlowSettings,
        setup: AdmissionSetup,
        evict: Evict,
        counted_twice: Callable[[], int],
        routing_ns: int,
        dispatch: Dispatch,
        lookahead: Lookahead,
        recorder: Recorder,
        closed: bool = False,
    ) -> None:
        self._events, self._routing_ns, self._dispatch = events, routing_ns, dispatch
        self._lookahead, self._recorder, self._closed = lookahead, recorder, closed
        self._signals, self._priority, self._tenant = setup.signals, setup.priority, setup.tenant
        self._table = recorder.table
        self._ttl_ns, self._targets_ns = settings.request_ttl_ns, settings.slo_targets_ns
        self._queue = GatewayQueue(settings)
        self._saturation = saturation = detector(settings.saturation_detector)(settings, setup.signals)
        self._counted_twice = counted_twice
        self._evictable = Evictable(evict, setup.priority) if settings.in_flight_eviction else None
        self._tick_ns = settings.dispatch_tick_interval_ns
        live = saturation.reads_reports and not self._signals.refresh_ns
        self._after_ends = self._tick_ns is None and (saturation.counts_in_flight or live)
        self._after_reports = self._tick_ns is None and saturation.reads_reports and not live
        self._looks = saturation.counts_in_flight or saturation.reads_reports
        self._count = 0
        self._coming: deque[tuple[int, Request]] = deque()
        """Requests sent ahead of their arrival time."""
        self._on_the_way: deque[tuple[int, Request]] = deque()
        """Requests that left the queue and are not dispatched yet."""
        self._next_ns = NEVER_NS
        """Time of the next scheduled examination, if known."""
        recorder.keep_waits()
        recorder.notify(self.ended)
        if self._looks:
            self._signals.watch()
        if live and self._tick_ns is None:
            self._signals.ring(self._changed)

    def __call__(self, due: Sequence[tuple[int, Request]]) -> None:
        """Accept requests in this order, each at its time."""
        for now_ns, request in due:
            if now_ns > self._events.now_ns:
                self._coming.append((now_ns, request))
                self._events.call_at(now_ns, self._arrived)
            else:
                self._take_in(now_ns, request)
        self._lookahead.look()

    def safe_until_ns(self) -> int:
        """See `blis_py.cluster.time.lookahead.Part`."""
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

    # -- entering ------------------------------------------------------------------------------------

    def _arrived(self, now_ns: int) -> None:
        self._take_in(*self._coming.popleft())
        self._lookahead.look()

    def _take_in(self, now_ns: int, request: Request) -> None:
        """Queue a request, if only for this moment, or refuse it."""
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
        self._count += 1
        target_ns = int(self._table.slo_target_ns[row]) or self._targets_ns.get(self._class_of(request), -1)
        tenant = self._tenant[row] or "default"
        return Waiting(request, now_ns, self._count, self._priority[row], tenant, target_ns)

    def _class_of(self, request: Request) -> str:
        return self._table.slo_class[request.row] or DEFAULT_CLASS

    # -- expiry --------------------------------------------------------------------------------------

    def _expect_end_of_patience(self, waiting: Waiting) -> None:
        """Schedule the expiry of a request: the gateway's time to live, or the client's deadline."""
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
            self._recorder.timed_out(request, now_ns)
        else:
            self._drop(request, now_ns, TTL)
        self._lookahead.look()

    # -- leaving -------------------------------------------------------------------------------------

    def _attempt(self, now_ns: int) -> None:
        """Dispatch every request that can be dispatched; with ticks, at most one."""
        if self._tick_ns is not None:
            self._look_at(now_ns + self._tick_ns)  # unless a tick is scheduled
            self._act(now_ns)
            return
        while self._act(now_ns):
            pass
        if self._queue and self._after_reports:
            self._look_at(self._signals.reported_ns + self._signals.refresh_ns)

    def _act(self, now_ns: int) -> bool:
        """Dispatch one queued request, or evict one in its favour; returns whether either happened."""
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
        """Requests in flight as counted by the gateway, each once: those on the way included, those being
        evicted not."""
        leaving = 0 if self._evictable is None else self._evictable.leaving
        at_instances = self._signals.total_in_flight - self._counted_twice()
        return at_instances + len(self._on_the_way) - leaving

    def _evicts(self, now_ns: int) -> bool:
        """Evict a request in favour of a non-sheddable queued one, if possible; returns whether it did."""
        evictable = self._evictable
        if evictable is None or not self._queue.urgent:
            return False
        if not self._saturation.counts_in_flight and evictable.leaving >= self._queue.urgent:
            return False  # room is being made, though not visible yet
        return evictable.evict(EVICTED, now_ns)

    def _send_until(self, now_ns: int) -> None:
        """Dispatch the requests whose time has come."""
        on_the_way = self._on_the_way
        while on_the_way and on_the_way[0][0] <= now_ns:
            due = on_the_way.popleft()
            self._dispatch([due])
            if self._evictable is not None:
                self._evictable.sent(due[1])

    def _leave(self, waiting: Waiting, now_ns: int, served: bool = False) -> None:
        self._queue.remove(waiting, served)
        self._recorder.left_gateway(waiting.request, now_ns)

    def _drop(self, request: Request, now_ns: int, why: str) -> None:
        self._recorder.rejected(request, now_ns, why)
        if self._recorder.on_end is not None:
            self._recorder.on_end(request, now_ns)

    # -- examining again -----------------------------------------------------------------------------

    def _look(self, now_ns: int) -> None:
        if self._looks:
            self._signals.look_at_load(now_ns)

    def _changed(self) -> None:
        """Schedule an examination: the state of an instance changed, and reports are immediate."""
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
        self._lookahead.look()
