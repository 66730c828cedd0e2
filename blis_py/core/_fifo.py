"""The first-come, first-served waiting queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator

from blis_py.core.counters import Counters
from blis_py.core.kv import KVCache
from blis_py.core.request import Request


class FifoQueue:
    """Order of arrival; preempted requests at the front. See `WaitingQueue`.

    It contains a deque instead of deriving from it, so that it can be native code: it is called in every
    step.
    """

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def push(self, request: Request) -> None:
        self._requests.append(request)

    def push_front(self, request: Request) -> None:
        self._requests.appendleft(request)

    def head(self, now_ns: int) -> Request:
        return self._requests[0]

    def pop_head(self, now_ns: int) -> Request:
        return self._requests.popleft()

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

    def next_change_ns(self, now_ns: int) -> int | None:
        return None

    def cache_order(self, kv: KVCache, prefilling: Collection[Request], counters: Counters) -> None:
        return None
