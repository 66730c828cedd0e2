"""In-flight requests that can be evicted in favour of others."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from blis_py.cluster.instances.instance import Instance
from blis_py.core.request import Request

_SOME: Final = 64


class Evictable:
    """The sheddable requests in flight.

    Args:
        priority: priority by `request.row`; below 0 the request is sheddable.
    """

    def __init__(self, instances: Sequence[Instance], priority: Sequence[int]) -> None:
        self._instances, self._priority = instances, priority
        self._heap: list[tuple[int, int, Request]] = []
        """Heap with the next victim at the top; some entries have ended."""
        self._instance_of: dict[int, int] = {}
        """Instance by row, of requests that neither ended nor are being evicted."""
        self._leaving: set[int] = set()
        self._sent = 0

    def sent(self, request: Request, instance: int) -> None:
        """Record a request dispatched to an instance."""
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
        """Remove a request that is no longer in flight."""
        self._instance_of.pop(request.row, None)
        self._leaving.discard(request.row)

    @property
    def leaving(self) -> int:
        """Number of requests being evicted that have not left yet."""
        return len(self._leaving)

    def evict(self, now_ns: int) -> Request | None:
        """Evict the least urgent request, among equals the one sent last; `None` if there is none.

        Requests whose clients have timed out are skipped: they leave anyway.
        """
        while self._heap:
            request = heappop(self._heap)[2]
            instance = self._instance_of.pop(request.row, None)
            if instance is not None and not 0 <= request.deadline_ns <= now_ns:
                self._leaving.add(request.row)
                self._instances[instance].cancel(request, now_ns)
                return request
        return None
