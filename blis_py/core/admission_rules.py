"""Admission rules of engines: whether a waiting request may start, beyond blocks for its first step.

A rule is a class and a line in `ADMISSION_RULES`.
"""

from __future__ import annotations

from collections.abc import Callable

from blis_py.core.admission_rule import AdmissionRule, Admitted, limit_of
from blis_py.core.blocks import block_count
from blis_py.core.config import SchedulerConfig
from blis_py.core.new_token_ratio import NewTokenRatio, NewTokenRatioOfRanks
from blis_py.core.request import Request


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
        return block_count(request.prompt_tokens + limit_of(request), self._block_size)


ADMISSION_RULES: dict[str, Callable[[SchedulerConfig, Admitted], AdmissionRule]] = {
    "blocks": AdmissionRule,
    "guaranteed-no-evict": GuaranteedNoEvict,
    "new-token-ratio": NewTokenRatio,
    "new-token-ratio-ranks": NewTokenRatioOfRanks,
}
