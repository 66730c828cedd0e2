"""Decode steps that emit several tokens: speculation, multi-token prediction.

The number of tokens a step emits for a request is data, not a kind of request. Without a supplier of that
data, and for all requests it does not concern, the number is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from blis_py.core.request import Request


class Emission(Protocol):
    """Supplier of the number of tokens that a request's decode steps compute and emit."""

    def is_irregular(self, request: Request) -> bool:
        """Whether a step may emit more than one token for it; fixed when it arrives at the instance."""
        ...

    def rows(self, request: Request) -> int:
        """Positions of its next decode step: one, plus its drafts."""
        ...

    def tokens(self, request: Request, step: int, rows: int) -> int:
        """Number of tokens emitted of the `rows` that step computes: at least 1. Called once per step.

        Args:
            step: index on the instance.
            rows: may be fewer than requested, at the limit of budget or length.
        """
        ...


class Bursts:
    """An `Emission` within the limits of an instance.

    Args:
        max_tokens: length of the longest sequence.
    """

    def __init__(self, emission: Emission, max_tokens: int) -> None:
        self.emission = emission
        self._max_tokens = max_tokens

    def rows(self, request: Request) -> int:
        """Positions a decode step computes, within the limits of client and pool."""
        limit = request.max_tokens or self._max_tokens - request.prompt_tokens
        return max(min(self.emission.rows(request), limit - request.generated), 1)

    def emissions(self, prefills: Iterable[tuple[Request, int]], step: int) -> dict[Request, int] | None:
        """Tokens that a step emits for each request, except for those with one."""
        tokens_of: dict[Request, int] = {}
        for request, rows in prefills:
            if request.bursting:
                left = max(request.target - request.generated, 1)
                tokens = max(min(self.emission.tokens(request, step, rows), rows, left), 1)
                if tokens > 1:
                    tokens_of[request] = tokens
        return tokens_of or None
