"""In-flight requests that can be evicted in favour of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from blis_py.core.request import Request

_SOME: Final = 64
Evict = Callable[[Request, str, int], bool]
"""Evict a request from the instance where it is, for a reason, at a time; False while it is at none."""


class Evictable:
    """The sheddable requests in flight.

    Args:
        priority: priority by `request.row`; below 0 the request is sheddable.
    """

    def __init__(self, evict: Evict, priority: Sequence[int]) -> None:
        self._evict, self._priority = evict, priority
        self._heap: list[tuple[int, int, Request]] = []
        """Heap with the next victim at the top; some entries have ended."""
        self._rows: set[int] = set()
        """Rows of requests that neither ended nor are being evicted."""
        self._leaving: set[int] = set()
        self._sent = 0

    def sent(self, request: Request) -> None:
        """Record a request that is dispatched."""
        priority = self._priority[request.row]
        if priority < 0:
            self._sent += 1
            heappush(self._heap, (priority, -self._sent, request))
            self._rows.add(request.row)
            if len(self._heap) > 2 * len(self._rows) + _SOME:
                self._forget_ended()

    def _forget_ended(self) -> None:
        self._heap = [entry for entry in self._heap if entry[2].row in self._rows]
        heapify(self._heap)

    def ended(self, request: Request) -> None:
        """Remove a request that is no longer in flight."""
        self._rows.discard(request.row)
        self._leaving.discard(request.row)

    @property
    def leaving(self) -> int:
        """Number of requests being evicted that have not left yet."""
        return len(self._leaving)

    def evict(self, why: str, now_ns: int) -> bool:
        """Evict the least urgent request, among equals the one sent last; returns whether there was one.

        Requests whose clients have timed out are skipped: they leave anyway. Those between two instances are
        skipped for now.
        """
        between: list[tuple[int, int, Request]] = []
        found = False
        while self._heap and not found:
            entry = heappop(self._heap)
            request = entry[2]
            if request.row not in self._rows or 0 <= request.deadline_ns <= now_ns:
                continue
            found = self._evict(request, why, now_ns)
            if not found:
                between.append(entry)
            elif request.row in self._rows:  # it may have left at once
                self._rows.remove(request.row)
                self._leaving.add(request.row)
        for entry in between:
            heappush(self._heap, entry)
        return found
