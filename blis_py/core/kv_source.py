"""KV from outside an instance: a tier, a remote prefix store, a transfer from a prefill instance, an adapter.

At the head of the waiting queue a request is matched with the local prefix cache first; the source then says
how many further tokens it can supply and when they are there (vLLM's KV connector). What is there at once
counts as computed. Otherwise the request takes its blocks, leaves the queue with status `WAITING_FOR_KV`, and
goes on when the tokens have come, before all others that wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from blis_py.core.request import Request


@dataclass(frozen=True, slots=True)
class Supply:
    """An offer of KV."""

    tokens: int
    """Leading tokens of the request beyond those it has, at least 1."""
    ready_ns: int
    """When they are in the request's blocks; not later than now = at once, `NEVER_NS` = not known yet, see
    `Lifecycle.kv_ready_at`."""


class KVSource(Protocol):
    """Where KV comes from. Tokens count from the beginning of the sequence."""

    def offer(self, request: Request, computed_tokens: int, now_ns: int) -> Supply | None:
        """What it can supply behind the first `computed_tokens`; None = nothing.

        The scheduler may repeat the question at every step, so it changes nothing.
        """
        ...

    def load(self, request: Request, computed_tokens: int, supply: Supply, now_ns: int) -> None:
        """The offer is taken, maybe for fewer tokens: the request has its blocks, and the load begins."""
        ...

    def arrived(self, request: Request, now_ns: int) -> int:
        """How many tokens of a load that was not there at once have come; fewer than offered: the others are
        gone, and will be computed."""
        ...

    def cancel(self, request: Request) -> None:
        """A load under way has become needless; its blocks are free."""
        ...
