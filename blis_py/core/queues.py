"""Waiting queues. Finding the next request costs O(log n) at most, never a sort of the whole queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any, Protocol

from blis_py.core.request import Request

Key = Callable[[Request], tuple[Any, ...]]


class WaitingQueue(Protocol):
    """Waiting requests in the order of a policy."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, in no particular order."""
        ...

    def push(self, request: Request) -> None:
        """A new arrival."""
        ...

    def push_front(self, request: Request) -> None:
        """A preempted request. Goes first, unless the policy sorts it elsewhere."""
        ...

    def head(self, now_ns: int) -> Request:
        """The next request to admit. The queue must not be empty."""
        ...

    def pop_head(self, now_ns: int) -> Request:
        """Removes and returns the head."""
        ...

    def remove(self, request: Request) -> None:
        """Takes out a request that gave up."""
        ...

    def next_change_ns(self, now_ns: int) -> int | None:
        """Earliest later time at which the head may change though nothing came or went."""
        ...


class FifoQueue(deque[Request]):
    """Order of arrival; preempted requests at the front."""

    push = deque.append
    push_front = deque.appendleft

    def head(self, now_ns: int) -> Request:
        return self[0]

    def pop_head(self, now_ns: int) -> Request:
        return self.popleft()

    def next_change_ns(self, now_ns: int) -> int | None:
        return None


class SortedQueue:
    """Smallest key first. A heap; a removed request's entry stays behind until it surfaces."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._heap: list[tuple[tuple[Any, ...], int, Request]] = []
        self._ticket_of: dict[Request, int] = {}
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._ticket_of)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._ticket_of)

    def push(self, request: Request) -> None:
        self._tickets += 1
        self._ticket_of[request] = self._tickets
        heappush(self._heap, (self._key(request), self._tickets, request))

    push_front = push

    def head(self, now_ns: int) -> Request:
        heap, ticket_of = self._heap, self._ticket_of
        while True:
            _, ticket, request = heap[0]
            if ticket_of.get(request) == ticket:
                return request
            heappop(heap)

    def pop_head(self, now_ns: int) -> Request:
        request = self.head(now_ns)
        del self._ticket_of[request]
        return request

    def remove(self, request: Request) -> None:
        del self._ticket_of[request]

    def next_change_ns(self, now_ns: int) -> int | None:
        return None


class AgingQueue:
    """Smallest key first, but requests that have waited for a bound go before them, by arrival."""

    def __init__(self, key: Key, aging_ns: int) -> None:
        self._by_key = SortedQueue(key)
        self._by_arrival = SortedQueue(lambda request: (request.arrival_ns, request.id))
        self._aging_ns = aging_ns

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._by_key)

    def push(self, request: Request) -> None:
        self._by_key.push(request)
        self._by_arrival.push(request)

    push_front = push

    def head(self, now_ns: int) -> Request:
        oldest = self._by_arrival.head(now_ns)
        return oldest if now_ns - oldest.arrival_ns >= self._aging_ns else self._by_key.head(now_ns)

    def pop_head(self, now_ns: int) -> Request:
        request = self.head(now_ns)
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        self._by_key.remove(request)
        self._by_arrival.remove(request)

    def next_change_ns(self, now_ns: int) -> int | None:
        overdue_at = self._by_arrival.head(now_ns).arrival_ns + self._aging_ns
        return overdue_at if overdue_at > now_ns else None
