"""Interface of admission rules: whether a waiting request may start, beyond blocks for its first step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from blis_py.core.config import SchedulerConfig
from blis_py.core.kv import KVCache
from blis_py.core.kv_loads import KVLoads
from blis_py.core.request import Request


class Admitted(Protocol):
    """State of an instance as a rule reads it."""

    running: dict[Request, None]
    loads: KVLoads | None
    kv: KVCache
    tick: int
    resolved: int

    @property
    def waiting(self) -> Iterable[Request]:
        """Requests in the queue."""
        ...

    def settled_generated(self, request: Request) -> int:
        """Output tokens of a running request so far."""
        ...

    def known_outputs(self, request: Request) -> int:
        """Those whose step's outcome is known."""
        ...


class AdmissionRule:
    """vLLM's rule, and `MAX_UTILIZATION` of TensorRT-LLM: blocks for the first step are enough; preemption
    does the rest.

    A *pass* is the part of a step's planning in which prompts are chosen.
    """

    def __init__(self, config: SchedulerConfig, instance: Admitted) -> None:
        self._instance = instance
        self._block_size = config.block_size
        self._blocks = config.num_kv_blocks
        self._max_num_seqs = config.max_num_seqs

    def admits(self, request: Request, uncached_tokens: int) -> bool:
        """
        Args:
            uncached_tokens: tokens of its prompt that are not cached.
        """
        return True

    def covers(self, request: Request, uncached_tokens: int) -> bool:
        """The same outside a pass, of a request whose KV comes from elsewhere."""
        return self.admits(request, uncached_tokens)

    # -- a pass ----------------------------------------------------------------------------------------

    def begin(self, prompts: int) -> bool:
        """Begin the pass of the step being planned; whether waiting requests take part in it.

        Args:
            prompts: unfinished ones that go on.
        """
        return True

    def looks(self, budget_tokens: int) -> bool:
        """Whether the next waiting request is looked at, with this budget left."""
        return budget_tokens > 0 and len(self._instance.running) < self._max_num_seqs

    def chunk_tokens(self, budget_tokens: int) -> int:
        """Longest next chunk of an unfinished prompt."""
        return budget_tokens

    def took(self, request: Request, tokens: int) -> None:
        """Note a request with its tokens in this pass."""

    def goes_on(self, budget_tokens: int) -> bool:
        """Whether the pass goes on behind a request that it admitted, with this budget left."""
        return True

    def passed(self, goes_on: bool) -> None:
        """Note that the pass computes prompts.

        Args:
            goes_on: whether one of them is unfinished after it.
        """

    # -- between passes --------------------------------------------------------------------------------

    def may_change(self) -> bool:
        """Whether the next step may find another answer for the head of the queue, without arrivals or
        departures."""
        return False

    def forgets_departed(self) -> bool:
        """Count requests that ended no longer as running; whether that lets the step be planned anew."""
        return False

    def skipped(self) -> None:
        """Note that a step without prompts was planned in which no request decodes."""

    def left(self, request: Request) -> None:
        """Note that a running request is about to leave."""

    def retracted(self, remaining: list[Request]) -> None:
        """Note that requests were retracted and these go on decoding."""

    def rested(self) -> None:
        """Note that there is nothing to compute."""


def limit_of(request: Request) -> int:
    """The limit of tokens that a client sets; requests without one count with the length of their answer, as
    clients that know it send it as the limit."""
    return request.max_tokens or request.target
