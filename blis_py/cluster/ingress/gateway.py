"""Gateway that admits every request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from blis_py.cluster.ingress.source import Source
from blis_py.cluster.time.events import EventQueue
from blis_py.cluster.time.lookahead import NOT_AT_ALL_NS, Lookahead
from blis_py.core.request import NEVER_NS, Request

Dispatch = Callable[[Sequence[tuple[int, Request]]], None]
"""Send requests to instances in this order, each at its dispatch time."""


class Gateway:
    """Admit every request and dispatch it a fixed delay after its arrival.

    Args:
        source: the source of the requests.
        delay_ns: delay of admission and routing together.
    """

    looks = False
    """Whether a decision depends on the state of the instances."""

    def __init__(
        self, events: EventQueue, source: Source, delay_ns: int, dispatch: Dispatch, lookahead: Lookahead
    ) -> None:
        self._events = events
        self._source = source
        self._delay_ns = delay_ns
        self._dispatch = dispatch
        self._lookahead = lookahead
        self._on_the_way: deque[tuple[int, Request]] = deque()
        """Admitted requests that are not dispatched yet."""

    def receive(self, requests: Sequence[Request]) -> None:
        """Accept requests that were sent."""
        delay_ns = self._delay_ns
        self._send_on([(request.arrival_ns + delay_ns, request) for request in requests])

    def _send_on(self, due: Sequence[tuple[int, Request]]) -> None:
        """Dispatch requests at their times, or ahead of time where the lookahead permits."""
        if not self._delay_ns or self._lookahead.is_open:
            self._dispatch(due)
            return
        for one in due:
            self._hold(one)

    def _hold(self, due: tuple[int, Request]) -> None:
        """Schedule the dispatch of a request."""
        self._on_the_way.append(due)
        self._events.call_at(due[0], self._arrived)

    def _arrived(self, now_ns: int) -> None:
        self._dispatch([self._on_the_way.popleft()])

    def safe_until_ns(self) -> int:
        """No request leaves the gateway before or at this time."""
        if self._source.listens:
            return NOT_AT_ALL_NS
        coming_ns = self._source.safe_until_ns()
        if coming_ns < NEVER_NS:
            coming_ns += self._delay_ns
        return min(self._on_the_way[0][0] - 1, coming_ns) if self._on_the_way else coming_ns
