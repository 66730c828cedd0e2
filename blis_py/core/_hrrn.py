"""Highest response ratio next: long waits and short work go first."""

from __future__ import annotations

from typing import Any

from blis_py.core._cache_aware import CacheAwareQueue
from blis_py.core.request import Request


class HighestResponseRatio(CacheAwareQueue):
    """Largest ratio of work waited for to work requested, both in prefill tokens.

    The first is the work the instance has computed since the request arrived, the second the request's
    uncached tokens. The ratio grows with waiting, so no request starves. (Brinch Hansen's rule, 1 + wait /
    service, with tokens for time.)
    """

    def score(self, request: Request) -> tuple[Any, ...]:
        uncached = request.num_tokens - self.matched_tokens(request)
        return (-self.waited_tokens(request) / uncached, request.arrival_ns, request.id)
