"""Decode steps that emit several tokens: speculation, multi-token prediction.

How many tokens a step emits for a request is data, not a kind of request. Without a supplier of that data,
and for all requests that it does not concern, it is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from blis_py.core.request import Request


class Emission(Protocol):
    """How many tokens the decode steps of a request compute and emit."""

    def is_irregular(self, request: Request) -> bool:
        """Whether a step may emit more than one token for it; fixed when it comes to the instance."""
        ...

    def rows(self, request: Request) -> int:
        """Positions its next decode step computes: one, and its drafts."""
        ...

    def tokens(self, request: Request, step: int, rows: int) -> int:
        """Of the `rows` that step computes, those it emits: at least 1. Called once per step.

        Args:
            step: index on the instance.
            rows: may be fewer than asked for, where budget or length end.
        """
        ...


class Bursts:
    """An `Emission` within the limits of an instance.

    Args:
        max_tokens: of the longest sequence.
    """

    def __init__(self, emission: Emission, max_tokens: int) -> None:
        self.emission = emission
        self._max_tokens = max_tokens

    def rows(self, request: Request) -> int:
        """Positions a decode step computes: never beyond what the client or the pool permits."""
        limit = request.max_tokens or self._max_tokens - request.prompt_tokens
        return max(min(self.emission.rows(request), limit - request.generated), 1)

    def emissions(self, prefills: Iterable[tuple[Request, int]], step: int) -> dict[Request, int] | None:
        """Tokens that a step emits for each request, but for those that get one."""
        found: dict[Request, int] = {}
        for request, rows in prefills:
            if request.bursting:
                left = max(request.target - request.generated, 1)
                tokens = max(min(self.emission.tokens(request, step, rows), rows, left), 1)
                if tokens > 1:
                    found[request] = tokens
        return found or None
