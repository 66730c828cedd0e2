"""Requests that instances work on and that can be told to leave for others."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from blis_py.cluster.instance import Instance
from blis_py.core.request import Request


class Evictable:
    """The sheddable requests in flight.

    Args:
        priority: of each request by `request.row`; below 0 it may be shed.
    """

    def __init__(self, instances: Sequence[Instance], priority: Sequence[int]) -> None:
        self._instances, self._priority = instances, priority
        self._heap: list[tuple[int, int, Request]] = []
        self._instance_of: dict[int, int] = {}
        """By row, of those that have not ended and not been told to leave."""
        self._leaving: set[int] = set()
        self._sent = 0

    def sent(self, request: Request, instance: int) -> None:
        """It goes to an instance."""
        priority = self._priority[request.row]
        if priority < 0:
            self._sent += 1
            heappush(self._heap, (priority, -self._sent, request))
            self._instance_of[request.row] = instance

    def ended(self, request: Request) -> None:
        """It is in flight no more."""
        self._instance_of.pop(request.row, None)
        self._leaving.discard(request.row)

    @property
    def leaving(self) -> int:
        """Told to leave, and not gone yet."""
        return len(self._leaving)

    def evict(self, now_ns: int) -> Request | None:
        """Tells the least urgent one to leave, of several the one that was sent last; `None` = there is none.

        Whoever has lost its client already leaves anyway.
        """
        while self._heap:
            request = heappop(self._heap)[2]
            instance = self._instance_of.pop(request.row, None)
            if instance is not None and not 0 <= request.deadline_ns <= now_ns:
                self._leaving.add(request.row)
                self._instances[instance].call_off(request, now_ns)
                return request
        return None
