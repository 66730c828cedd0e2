"""Deadlines of the requests on one instance."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from blis_py.core.request import NEVER_NS, Request


class Deadlines:
    """Requests with a deadline that have not ended.

    Most deadlines come in the order of arrivals, and stay in a queue; a heap has the others.
    """

    def __init__(self) -> None:
        self.first_ns = NEVER_NS
        """The earliest deadline; `NEVER_NS` = none."""
        self._first = -1
        """Number of the request with that deadline."""
        self._requests: dict[int, Request] = {}
        self._in_order: deque[tuple[int, int]] = deque()
        """Deadlines, each with the number of its request; those of requests that have ended are dropped when
        they come first."""
        self._last_ns = -1
        self._others: list[tuple[int, int]] = []
        """A heap of the same."""
        self._submitted = 0

    def add(self, request: Request) -> None:
        """Add the deadline of a request, in addition to an earlier one of the same request."""
        number = request.number
        if number < 0 or self._requests.get(number) is not request:
            self._submitted += 1
            request.number = number = self._submitted
            self._requests[number] = request
        deadline_ns = request.deadline_ns
        if deadline_ns >= self._last_ns:
            self._in_order.append((deadline_ns, number))
            self._last_ns = deadline_ns
        else:
            heappush(self._others, (deadline_ns, number))
        if deadline_ns < self.first_ns:
            self.first_ns, self._first = deadline_ns, number

    def remove(self, request: Request) -> None:
        """Remove a request that has ended."""
        requests = self._requests
        del requests[request.number]
        if not requests:
            self._clear()
        elif request.number == self._first:
            self._find_first()

    def first(self) -> Request:
        """The request with the earliest deadline; there must be one."""
        return self._requests[self._first]

    def _clear(self) -> None:
        """Drop all entries: none is of a request that has not ended."""
        self._in_order.clear()
        self._others.clear()
        self.first_ns, self._first, self._last_ns = NEVER_NS, -1, -1

    def _find_first(self) -> None:
        in_order, others, requests = self._in_order, self._others, self._requests
        while in_order and in_order[0][1] not in requests:
            in_order.popleft()
        while others and others[0][1] not in requests:
            heappop(others)
        first = in_order[0] if in_order else (NEVER_NS, -1)
        self.first_ns, self._first = min(first, others[0]) if others else first
