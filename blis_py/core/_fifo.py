"""The first-come, first-served waiting queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from itertools import chain

from blis_py.core.counters import Counters
from blis_py.core.kv import KVCache
from blis_py.core.request import Request


class FifoQueue:
    """Order of arrival; preempted requests at the front. See `WaitingQueue`.

    It contains deques instead of deriving from one, so that it can be native code: it is called in every
    step.

    Args:
        constrained_first: requests with a grammar that have not run go before all others.
    """

    def __init__(self, constrained_first: bool = False) -> None:
        self._requests: deque[Request] = deque()
        self._constrained: deque[Request] = deque()
        """Those that go before the others."""
        self._constrained_first = constrained_first

    def __len__(self) -> int:
        return len(self._requests) + len(self._constrained)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests) if not self._constrained else chain(self._constrained, self._requests)

    def push(self, request: Request) -> None:
        self._queue_of(request).append(request)

    def push_front(self, request: Request) -> None:
        self._requests.appendleft(request)

    def head(self, now_ns: int) -> Request:
        return self._constrained[0] if self._constrained else self._requests[0]

    def pop_head(self, now_ns: int) -> Request:
        return self._constrained.popleft() if self._constrained else self._requests.popleft()

    def remove(self, request: Request) -> None:
        self._queue_of(request).remove(request)

    def _queue_of(self, request: Request) -> deque[Request]:
        """The part of the queue for a request."""
        if self._constrained_first and request.constrained and not request.preemptions:
            return self._constrained
        return self._requests

    def next_change_ns(self, now_ns: int) -> int | None:
        return None

    def cache_order(self, kv: KVCache, prefilling: Collection[Request], counters: Counters) -> None:
        return None
