"""Decode steps that emit several tokens: speculation, multi-token prediction.

The number of tokens a step emits for a request is data, not a kind of request. Without a supplier of that
data, and for all requests it does not concern, the number is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from blis_py.core.config import SchedulerConfig
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

    def __init__(self, emission: Emission, config: SchedulerConfig, max_tokens: int) -> None:
        self.emission = emission
        self._max_tokens = max_tokens
        self._beyond_limit = config.drafts_beyond_limit
        self._awaits = config.async_scheduling and config.blocks_await_outcome

    def rows(self, request: Request, resolved: int) -> int:
        """Positions a decode step computes, within the limits of client and pool; 0 where drafts in flight
        would fill the longest sequence, if accepted.

        Args:
            resolved: steps whose outcome is known.
        """
        rows = self.emission.rows(request)
        if self._beyond_limit:
            return min(rows, self._max_tokens - 1 - request.computed - self.doubtful(request, resolved))
        limit = request.max_tokens or self._max_tokens - request.prompt_tokens
        return max(min(rows, limit - request.generated), 1)

    def doubtful(self, request: Request, resolved: int) -> int:
        """Positions behind its computed tokens that count as computed, too, until it is known that its drafts
        there are rejected."""
        if not self._awaits or request.last_rows <= 0:
            return 0
        emitted = request.in_flight(resolved)
        return request.last_rows - emitted if emitted else 0

    def ends_for_sure(self, request: Request, before: int) -> bool:
        """Whether no step is planned behind one that ends a request.

        Args:
            before: tokens emitted before that step.
        """
        if not self._awaits:
            return not request.ends_late
        return before + 1 >= (request.max_tokens or self._max_tokens - request.prompt_tokens)

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
