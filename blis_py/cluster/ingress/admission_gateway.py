"""Gateway with an admission policy."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from blis_py.cluster.ingress.admission import Admission
from blis_py.cluster.ingress.gateway import Dispatch, Gateway
from blis_py.cluster.ingress.source import Source
from blis_py.cluster.recording.recorder import Recorder
from blis_py.cluster.routing.signals import Signals
from blis_py.cluster.time.events import EventQueue
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.core.request import NEVER_NS, Request


class AdmissionGateway(Gateway):
    """Apply an admission policy to each request, some time after its arrival. Rejected requests end there.

    Decisions and dispatches happen in order of time; within a nanosecond, dispatches come first.

    Args:
        admission_ns: time from an arrival to the decision.
        routing_ns: time from the decision to the dispatch.
        signals: instance state, for a policy that reads it.
    """

    def __init__(
        self,
        events: EventQueue,
        source: Source,
        admission_ns: int,
        routing_ns: int,
        dispatch: Dispatch,
        lookahead: Lookahead,
        admit: Admission,
        signals: Signals,
        recorder: Recorder,
    ) -> None:
        super().__init__(events, source, admission_ns + routing_ns, dispatch, lookahead)
        self._admission_ns, self._routing_ns = admission_ns, routing_ns
        self._admit, self._signals, self._recorder = admit, signals, recorder
        self.looks = admit.looks_at_load
        self._asking: deque[tuple[int, Request]] = deque()
        """Requests not decided yet."""
        if self.looks:
            signals.watch()

    def receive(self, requests: Sequence[Request]) -> None:
        due = [(request.arrival_ns + self._admission_ns, request) for request in requests]
        if not self.looks:
            admitted = [one for one in due if self._lets_in(*one)]
            self._send_on([(now_ns + self._routing_ns, request) for now_ns, request in admitted])
        elif not self._admission_ns or self._lookahead.is_open:
            self._decide(due)
        else:
            for one in due:
                self._asking.append(one)
                self._events.call_at(one[0], self._decide_next)

    def _decide_next(self, now_ns: int) -> None:
        self._decide([self._asking.popleft()])

    def _decide(self, due: Sequence[tuple[int, Request]]) -> None:
        """Decide about requests in order of time, each on the state of the cluster at that time."""
        for now_ns, request in due:
            self._send_until(now_ns)
            self._signals.look(now_ns)
            if self._lets_in(now_ns, request):
                self._hold((now_ns + self._routing_ns, request))
                if not self._routing_ns:
                    self._send_until(now_ns)
        self._lookahead.look()

    def _lets_in(self, now_ns: int, request: Request) -> bool:
        """Whether a request is admitted, before the run ends."""
        if now_ns > self._lookahead.end_ns:
            return False
        why = self._admit(request, now_ns)
        if not why:
            return now_ns + self._routing_ns <= self._lookahead.end_ns
        self._recorder.rejected(request, now_ns, why)
        if self._source.listens:
            self._source.ended(request, now_ns)
        return False

    def _hold(self, due: tuple[int, Request]) -> None:
        self._on_the_way.append(due)
        if self._routing_ns or not self.looks:
            self._events.call_at(due[0], self._arrived)

    def _arrived(self, now_ns: int) -> None:
        self._send_until(now_ns)

    def _send_until(self, now_ns: int) -> None:
        """Dispatch the requests whose time has come."""
        on_the_way = self._on_the_way
        while on_the_way and on_the_way[0][0] <= now_ns:
            one = on_the_way.popleft()
            self._lookahead.narrow(one[0] - 1)  # an earlier dispatch may have extended the lookahead
            self._dispatch([one])

    def safe_until_ns(self) -> int:
        if not self.looks or self._source.listens:
            return super().safe_until_ns()
        coming_ns = self._source.safe_until_ns()
        if coming_ns < NEVER_NS:
            coming_ns += self._admission_ns
        return min(self._on_the_way[0][0] - 1, coming_ns) if self._on_the_way else coming_ns
