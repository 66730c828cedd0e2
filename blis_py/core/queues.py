"""Waiting queues. Finding the next request takes O(log n) at most, never a sort of the whole queue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from heapq import heappop, heappush
from typing import Any, Protocol

from blis_py.core.counters import Counters
from blis_py.core.kv import KVCache
from blis_py.core.request import Request

Key = Callable[[Request], tuple[Any, ...]]


class WaitingQueue(Protocol):
    """Waiting requests in the order of a policy."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, in no particular order."""
        ...

    def push(self, request: Request) -> None:
        """Add a new arrival."""
        ...

    def push_front(self, request: Request) -> None:
        """Add a preempted request. Goes first, unless the policy sorts it elsewhere."""
        ...

    def head(self, now_ns: int) -> Request | None:
        """The next request to admit; None if all are held back for this step. The queue must not be empty."""
        ...

    def pop_head(self, now_ns: int) -> Request:
        """Remove and return the request that `head` has just returned."""
        ...

    def remove(self, request: Request) -> None:
        """Remove a request whose client timed out."""
        ...

    def next_change_ns(self, now_ns: int) -> int | None:
        """Earliest later time at which the head may change without arrivals or departures."""
        ...

    def cache_order(
        self, kv: KVCache, prefilling: Collection[Request], counters: Counters
    ) -> CacheOrder | None:
        """Connect a queue whose order depends on the prefix cache to its instance; None if it does not.

        Args:
            prefilling: requests whose prompts are being computed.
            counters: of the instance; its prefill tokens are a clock of work.
        """
        ...


class CacheOrder(Protocol):
    """State of a scheduler for an order that depends on the prefix cache."""

    scanned_requests: int
    """Requests looked up in the cache since the scheduler set it to 0."""

    @property
    def looks_at_cache(self) -> bool:
        """Whether the order currently depends on the cache."""
        ...


class SortedQueue(dict[Request, int]):
    """Smallest key first. A heap; a removed request's entry stays behind until it surfaces.

    As a mapping: the waiting requests, each with the number of its valid entry in the heap.
    """

    def __init__(self, key: Key) -> None:
        self._key = key
        self._heap: list[tuple[tuple[Any, ...], int, Request]] = []
        self._entries = 0

    def push(self, request: Request) -> None:
        self._entries += 1
        self[request] = self._entries
        heappush(self._heap, (self._key(request), self._entries, request))

    push_front = push
    remove = dict.__delitem__

    def head(self, now_ns: int) -> Request:
        heap = self._heap
        while self.get(heap[0][2]) != heap[0][1]:
            heappop(heap)
        return heap[0][2]

    def pop_head(self, now_ns: int) -> Request:
        request = heappop(self._heap)[2]
        del self[request]
        return request

    def next_change_ns(self, now_ns: int) -> int | None:
        return None

    def cache_order(self, kv: KVCache, prefilling: Collection[Request], counters: Counters) -> None:
        return None


class AgingQueue(SortedQueue):
    """Smallest key first, except that requests that have waited for a bound go before them, by arrival."""

    def __init__(self, key: Key, aging_ns: int) -> None:
        super().__init__(key)
        self._by_arrival = SortedQueue(lambda request: (request.arrival_ns, request.id))
        self._aging_ns = aging_ns

    def push(self, request: Request) -> None:
        super().push(request)
        self._by_arrival.push(request)

    push_front = push

    def head(self, now_ns: int) -> Request:
        oldest = self._by_arrival.head(now_ns)
        return oldest if now_ns - oldest.arrival_ns >= self._aging_ns else super().head(now_ns)

    def pop_head(self, now_ns: int) -> Request:
        request = self.head(now_ns)
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        del self[request]
        self._by_arrival.remove(request)

    def next_change_ns(self, now_ns: int) -> int | None:
        overdue_ns = self._by_arrival.head(now_ns).arrival_ns + self._aging_ns
        return overdue_ns if overdue_ns > now_ns else None
