"""Admission rules of engines: whether a waiting request may start, beyond blocks for its first step.

A rule is a class and a line in `ADMISSION_RULES`. It sees the limit of tokens that a client sets; requests
without one count with the length of their answer, as clients that know it send it as the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from blis_py.core.blocks import block_count
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

    def settled_generated(self, request: Request) -> int:
        """Output tokens of a running request so far."""
        ...


class AdmissionRule:
    """vLLM's rule, and `MAX_UTILIZATION` of TensorRT-LLM: blocks for the first step are enough; preemption
    does the rest."""

    varies = False
    """Whether the last refusal may be lifted by time alone."""

    def __init__(self, config: SchedulerConfig, instance: Admitted) -> None:
        self._instance = instance
        self._block_size = config.block_size
        self._blocks = config.num_kv_blocks

    def admits(self, request: Request, uncached_tokens: int) -> bool:
        """
        Args:
            uncached_tokens: tokens of its prompt that are not cached.
        """
        return True


class GuaranteedNoEvict(AdmissionRule):
    """TensorRT-LLM's default: a request starts when the pool holds it and all running ones to their ends.

    On a generation server it decides when blocks are taken for KV from a context server. Requests whose KV is
    on the way count with the blocks that they hold: they are in no state that `capacityScheduler.cpp`
    schedules.
    """

    def __init__(self, config: SchedulerConfig, instance: Admitted) -> None:
        super().__init__(config, instance)
        self._held: dict[Request, int] = {}
        self._reserved = 0

    def admits(self, request: Request, uncached_tokens: int) -> bool:
        self._update()
        loads = self._instance.loads
        loading = [] if loads is None else loads.requests
        if not self._held and not loading:
            return True
        taken = self._reserved + sum(len(each.block_table) for each in loading)
        return taken + self._needs(request) <= self._blocks

    def _update(self) -> None:
        """Follow the running list, which changes at its ends for the most part."""
        running = self._instance.running
        if len(running) == len(self._held) and next(reversed(running), None) is next(
            reversed(self._held), None
        ):
            return
        self._held = {each: self._held.get(each) or self._needs(each) for each in running}
        self._reserved = sum(self._held.values())

    def _needs(self, request: Request) -> int:
        return block_count(request.prompt_tokens + _limit(request), self._block_size)


class NewTokenRatio(AdmissionRule):
    """SGLang's rule: free tokens cover a request's prompt and limit, and of every running request's remaining
    limit a share, which falls with every step and rises again where requests had to be retracted.

    `PrefillAdder` of `schedule_policy.py`, `new_token_ratio` of `scheduler.py`.
    """

    _INITIAL, _MIN, _STEPS = 0.7, 0.098, 600
    _LONGEST = 4096
    """Remaining limits count up to this length."""

    def __init__(self, config: SchedulerConfig, instance: Admitted) -> None:
        super().__init__(config, instance)
        self._since_tick = 0

    def admits(self, request: Request, uncached_tokens: int) -> bool:
        instance, self.varies = self._instance, False
        if not instance.running:
            return True
        free = instance.kv.pool.num_free * self._block_size
        needed = uncached_tokens + min(_limit(request), self._LONGEST)
        passed = instance.tick - self._since_tick
        ratio = max(self._MIN, self._INITIAL - (self._INITIAL - self._MIN) * passed / self._STEPS)
        if needed + ratio * self._LONGEST * len(instance.running) < free:
            return True
        remaining = sum(
            min(_limit(each) - instance.settled_generated(each), self._LONGEST) for each in instance.running
        )
        self.varies = needed + ratio * remaining >= free
        return not self.varies


class NewTokenRatioOfRanks(NewTokenRatio):
    """SGLang's rule with attention DP: 0.3 of the share (`schedule_conservativeness` in
    `_handle_data_parallelism` of `server_args.py`)."""

    _INITIAL, _MIN = 0.21, 0.0294


def _limit(request: Request) -> int:
    return request.max_tokens or request.target


ADMISSION_RULES: dict[str, Callable[[SchedulerConfig, Admitted], AdmissionRule]] = {
    "blocks": AdmissionRule,
    "guaranteed-no-evict": GuaranteedNoEvict,
    "new-token-ratio": NewTokenRatio,
    "new-token-ratio-ranks": NewTokenRatioOfRanks,
}
