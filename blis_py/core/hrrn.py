"""Highest response ratio next: long waits and short work go first."""

from __future__ import annotations

from typing import Any

from blis_py.core.cache_aware import CacheAwareQueue
from blis_py.core.request import Request


class HighestResponseRatio(CacheAwareQueue):
    """Largest ratio of work waited for to work asked for, both in prefill tokens.

    The first is what the instance has computed since the request came, the second what the cache does not
    have of it. So it ages by itself: nobody waits for ever. (Brinch Hansen's rule, 1 + wait / service, with
    tokens for time.)
    """

    def score(self, request: Request) -> tuple[Any, ...]:
        uncached = request.num_tokens - self.matched_tokens(request)
        return (-self.waited_tokens(request) / uncached, request.arrival_ns, request.id)
