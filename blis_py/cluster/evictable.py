"""Requests that instances work on and that can be told to leave for others."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from blis_py.cluster.instance import Instance
from blis_py.core.request import Request

_SOME: Final = 64


class Evictable:
    """The sheddable requests in flight.

    Args:
        priority: of each request by `request.row`; below 0 it may be shed.
    """

    def __init__(self, instances: Sequence[Instance], priority: Sequence[int]) -> None:
        self._instances, self._priority = instances, priority
        self._heap: list[tuple[int, int, Request]] = []
        """The first to go at the top; some have ended."""
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
            if len(self._heap) > 2 * len(self._instance_of) + _SOME:
                self._forget_ended()

    def _forget_ended(self) -> None:
        self._heap = [entry for entry in self._heap if entry[2].row in self._instance_of]
        heapify(self._heap)

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
