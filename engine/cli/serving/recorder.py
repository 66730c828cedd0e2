"""Step recorder of a server: counts tokens, and forgets every step unless a log is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step
from engine.grammar.masks import MaskTimes
from engine.sequence import Roster, Sequence
from engine.steplog import Planned, StepRecorder, Times


class ServingRecorder(StepRecorder):
    """A recorder whose memory does not grow, unless it keeps the log.

    Args:
        keep: keep the log.
    """

    def __init__(self, meta: dict[str, Any], keep: bool) -> None:
        super().__init__(meta)
        self._keep = keep
        self.on_step: Callable[[int], None] | None = None
        """Called with the number of tokens of every step."""

    def added(self, sequence: Sequence) -> None:
        if self._keep:
            super().added(sequence)

    def boundary(self, now_ns: int, unfinished: int = 0) -> None:
        if self._keep:
            super().boundary(now_ns, unfinished)

    def aborted(self, sequence: Sequence, now_ns: int) -> None:
        if self._keep:
            super().aborted(sequence, now_ns)

    def planned(self, step: Step, scheduler: Scheduler, decoding: Roster) -> None:
        if self._keep:
            super().planned(step, scheduler, decoding)

    def masked(self, times: MaskTimes) -> None:
        if self._keep:
            super().masked(times)

    def done(self, step: Planned, times: Times, finished: Iterable[Request], **more: Any) -> None:
        if self.on_step is not None:
            self.on_step(step.features.prefill_tokens + step.features.decode_seqs)
        if self._keep:
            super().done(step, times, finished, **more)
        else:
            self.steps += 1
