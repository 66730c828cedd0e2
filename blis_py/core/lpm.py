"""Longest prefix match: the request with the longest cached prefix first."""

from __future__ import annotations

from typing import Any

from blis_py.core._cache_aware import CacheAwareQueue
from blis_py.core.request import Request


class LongestPrefixMatch(CacheAwareQueue):
    """Longest cached prefix first, in tokens; among equals by arrival (SGLang's `lpm`)."""

    def score(self, request: Request) -> tuple[Any, ...]:
        return (-self.kv.match(request), request.arrival_ns, request.id)
