"""KV from outside an instance: a tier, a remote prefix store, a transfer from a prefill instance, an adapter.

At the head of the waiting queue a request is matched with the local prefix cache first; the source then
returns how many further tokens it can supply and when they are ready (vLLM's KV connector). Tokens ready at
once count as computed. Otherwise the request takes its blocks, leaves the queue with status `WAITING_FOR_KV`,
and continues when the tokens have arrived, before all other waiting requests.
"""

from __future__ import annotations

from typing import Protocol

from blis_py.core.compiled_classes import mypyc_attr
from blis_py.core.request import Request


@mypyc_attr(acyclic=True)
class Supply:
    """An offer of KV.

    Args:
        tokens: leading tokens of the request beyond those it has; 0 = it only waits.
        ready_ns: when they are in the request's blocks; not later than now = at once, `NEVER_NS` = not known
            yet, see `Lifecycle.kv_ready_at`.
        free_tokens: room for so many tokens that must remain free once the request has its blocks; it waits
            otherwise.
    """

    __slots__ = ("free_tokens", "ready_ns", "tokens")

    def __init__(self, tokens: int, ready_ns: int, free_tokens: int = 0) -> None:
        self.tokens, self.ready_ns, self.free_tokens = tokens, ready_ns, free_tokens


class KVSource(Protocol):
    """A source of KV outside the instance. Tokens count from the beginning of the sequence."""

    def offer(self, request: Request, computed_tokens: int, now_ns: int) -> Supply | None:
        """The KV it can supply behind the first `computed_tokens`; None = nothing.

        The scheduler may repeat the call at every step, so it must not change anything.
        """
        ...

    def load(self, request: Request, computed_tokens: int, supply: Supply, now_ns: int) -> None:
        """Start the load of an accepted offer, possibly for fewer tokens; the request has its blocks."""
        ...

    def arrived(self, request: Request, now_ns: int) -> int:
        """Number of tokens that arrived with a load that was not ready at once; if fewer than offered, the
        others are lost and will be computed."""
        ...

    def cancel(self, request: Request) -> None:
        """Cancel a load in progress; its blocks are free."""
        ...
