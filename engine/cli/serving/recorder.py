"""Step recorders of a server: they count tokens, and forget every step unless a log is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from blis_py.core.diffusion_log import DiffusionLog
from blis_py.core.diffusion_request import BatchOutcome, Commit, DenoiseBatch
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step
from engine.diffusion.steplog import Round, RoundRecorder
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


class ServingRounds(ServingRecorder, RoundRecorder):
    """The same for block diffusion, where rounds are the steps."""

    def members(self, batch: DenoiseBatch, state: tuple[int, int, int]) -> None:
        if self._keep:
            super().members(batch, state)

    def round(self, batch: DenoiseBatch, past: Round, end_ns: int, **more: Any) -> None:
        if self._keep:
            super().round(batch, past, end_ns, **more)
            return
        if self.on_step is not None:
            self.on_step(batch.features.prefill_tokens + batch.features.decode_seqs)
        self.steps += 1


class ForgetfulLog(DiffusionLog):
    """Recorder without batches and commits."""

    def batch(self, batch: DenoiseBatch, outcome: BatchOutcome) -> None:
        """No-op."""

    def commits(self, commits: Iterable[Commit], now_ns: int) -> None:
        """No-op."""
