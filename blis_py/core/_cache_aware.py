"""Waiting queue of policies that look at the prefix cache."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self

from blis_py.core.blocks import block_count
from blis_py.core.config import SchedulerConfig
from blis_py.core.counters import Counters
from blis_py.core.kv import KVCache
from blis_py.core.queues import SortedQueue
from blis_py.core.request import Request


def by_arrival(request: Request) -> tuple[Any, ...]:
    return (request.arrival_ns, request.id)


class CacheAwareQueue(dict[Request, None]):
    """Waiting requests; `best` picks the next one by the current contents of the cache.

    - *Fairness*: a request that has waited `fairness_ms`, or while `fairness_tokens` of prefill work were
      done, goes first, by arrival. A bound of 0 is fcfs; without one a stream of hits may starve others.
    - *Long queues*: with more than `lpm_max_queue` waiting the order is that of arrival, as in SGLang.
    - *In-batch sharing*: a request that shares uncached tokens with a prompt being computed is held back
      until they are cached, instead of computing them too; not once it has waited too long.

    The cache stores each request's match until the tree changes there, so repeated lookups are cheap.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._by_arrival = SortedQueue(by_arrival)
        self._block_size = config.block_size
        self._max_queue = config.lpm_max_queue
        self._fairness_ns = None if config.fairness_ms is None else int(config.fairness_ms * 1e6)
        self._fairness_tokens = config.fairness_tokens
        sharing = config.in_batch_sharing_tokens
        self._sharing_blocks = 0 if sharing is None else block_count(sharing, config.block_size)
        self._head: Request | None = None
        self.scanned_requests = 0
        """Requests looked up in the cache since the planner of steps set it to 0."""
        self.kv: KVCache
        self._prefilling: Collection[Request]
        self._counters: Counters

    def cache_order(self, kv: KVCache, prefilling: Collection[Request], counters: Counters) -> Self:
        """Connect the queue to the instance: its cache, its prefilling requests, and the token clock."""
        self.kv, self._prefilling, self._counters = kv, prefilling, counters
        return self

    # -- the policy ------------------------------------------------------------------------------

    def best(self, waiting: Collection[Request]) -> Request:
        """The request to admit next: the one with the smallest `score`, unless a policy overrides this."""
        return min(waiting, key=self.score)

    def score(self, request: Request) -> tuple[Any, ...]:
        """Sort key, smallest first; must end in arrival and id, so that there are no ties."""
        raise NotImplementedError

    # -- the visible state -----------------------------------------------------------------------

    def matched_tokens(self, request: Request) -> int:
        """Length of the request's cached prefix."""
        return self.kv.match(request) * self._block_size

    def waited_tokens(self, request: Request) -> int:
        """Prefill tokens the instance has computed since the request arrived."""
        return self._counters.prefill_tokens - request.queued_at_tokens

    # -- the queue -------------------------------------------------------------------------------

    def push(self, request: Request) -> None:
        if not request.preemptions:
            request.queued_at_tokens = self._counters.prefill_tokens
        self[request] = None
        self._by_arrival.push(request)

    push_front = push

    def remove(self, request: Request) -> None:
        del self[request]
        self._by_arrival.remove(request)

    def head(self, now_ns: int) -> Request | None:
        self._head = self._choose(now_ns)
        return self._head

    def pop_head(self, now_ns: int) -> Request:
        head = self._head
        assert head is not None, "call `head` first"
        self.remove(head)
        return head

    def next_change_ns(self, now_ns: int) -> int | None:
        if self._fairness_ns is None or not self.looks_at_cache:
            return None
        overdue_ns = self._by_arrival.head(now_ns).arrival_ns + self._fairness_ns
        return overdue_ns if overdue_ns > now_ns else None

    @property
    def holds_all_back(self) -> bool:
        """Whether the latest call of `head` returned None: all requests wait for prefixes being computed."""
        return self._head is None

    @property
    def looks_at_cache(self) -> bool:
        """Whether the order currently depends on the cache."""
        return len(self) <= self._max_queue

    def _choose(self, now_ns: int) -> Request | None:
        oldest = self._by_arrival.head(now_ns)
        if not self.looks_at_cache or self._is_overdue(oldest, now_ns):
            return oldest
        waiting: Collection[Request] = self
        self.scanned_requests += len(self)
        if self._sharing_blocks and self._prefilling:
            waiting = self._not_held_back()
        return self.best(waiting) if waiting else None

    def _is_overdue(self, request: Request, now_ns: int) -> bool:
        fairness_ns, fairness_tokens = self._fairness_ns, self._fairness_tokens
        return (fairness_ns is not None and now_ns - request.arrival_ns >= fairness_ns) or (
            fairness_tokens is not None and self.waited_tokens(request) >= fairness_tokens
        )

    def _not_held_back(self) -> list[Request]:
        """The requests that share too little with the prompts being computed to wait for them."""
        computing: dict[Any, list[Request]] = {}
        for request in self._prefilling:
            if request.block_keys:
                computing.setdefault((request.extra_key, request.block_keys[0]), []).append(request)
        if not computing:
            return list(self)
        return [
            request
            for request in self
            if not request.block_keys
            or not any(
                self._will_share(request, other)
                for other in computing.get((request.extra_key, request.block_keys[0]), ())
            )
        ]

    def _will_share(self, request: Request, other: Request) -> bool:
        """Whether the other request is computing enough of what this one lacks."""
        end = self.kv.match(request) + self._sharing_blocks
        keys, others = request.block_keys, other.block_keys
        limit = (request.num_tokens - 1) // self._block_size
        if end > min(limit, len(keys), len(others), other.num_tokens // self._block_size):
            return False
        return keys[end - 1] == others[end - 1] and list(keys[:end]) == list(others[:end])
