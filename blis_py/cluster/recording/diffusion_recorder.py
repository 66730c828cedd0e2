"""Recorder of block-diffusion instances: the columns of any other run, and some more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from blis_py.cluster.recording.instance_log import InstanceLog
from blis_py.cluster.recording.recorder import Recorder
from blis_py.core.diffusion import DiffusionScheduler
from blis_py.core.diffusion_features import ROUND_FEATURES
from blis_py.core.diffusion_request import BatchOutcome as BatchOutcome
from blis_py.core.diffusion_request import Commit, DenoiseBatch, DiffusionRequest
from blis_py.core.features import FEATURE_NAMES
from blis_py.core.request import Request
from blis_py.latency.base import FrontendDelays
from blis_py.latency.step_run import StepRun
from blis_py.metrics.emission import EmittedTokens
from blis_py.metrics.record import InstanceRecord, Outcome, RunRecord
from blis_py.metrics.visits import Onward
from blis_py.requests.table import Ints, RequestTable

_FEATURES = (*FEATURE_NAMES, *ROUND_FEATURES)


class DiffusionRecorder(Recorder):
    """The request columns of one run.

    A request emits in the rounds that commit its blocks. Its client sees a block once the front end has
    processed all of the block's tokens.
    """

    def __init__(
        self, table: RequestTable, frontend: FrontendDelays, block_tokens: int, on_the_way_ns: int = 0
    ) -> None:
        super().__init__(table, frontend, on_the_way_ns)
        self.block_tokens = block_tokens
        self.rounds = np.zeros(len(table), dtype=np.int64)

    def _record(self, end_ns: int) -> RunRecord:
        record = super()._record(end_ns)
        record.block_rounds = self.rounds
        return record

    def first_tokens(self, prompt_tokens: Ints) -> Ints:
        """New tokens of a full first block, which begins with the tail of the prompt."""
        return self.block_tokens - prompt_tokens % self.block_tokens

    def _emission(self) -> EmittedTokens:
        """Whole blocks, except for the first, which begins with the tail of the prompt, and the last."""
        emission = super()._emission()
        emission.tokens_per_step, emission.as_blocks = self.block_tokens, True
        visits = np.flatnonzero(emission.first_step >= 0)
        emitted, blocks = self.emitted_tokens[visits], emission.steps()[visits]
        first = np.minimum(self.first_tokens(self.table.prompt_tokens[self.request[visits]]), emitted)
        last = emitted - first - self.block_tokens * (blocks - 2)
        ends = np.concatenate((emission.first_step[visits], emission.last_step[visits]))
        others = np.column_stack((np.tile(visits, 2), ends, np.concatenate((first, last))))
        others = others[np.concatenate((first >= 0, blocks > 1)) & (others[:, 2] != self.block_tokens)]
        emission.others = others[np.lexsort(others.T[::-1])]
        return emission

    def _forget_unseen_tokens(self, instances: Sequence[InstanceRecord]) -> None:
        """No-op: `DiffusionInstanceLog.timed_out` removes whole blocks."""


class DiffusionInstanceLog(InstanceLog):
    """Log of one instance, round by round, and the outcome of the requests dispatched to it."""

    def __init__(
        self, recorder: DiffusionRecorder, scheduler: DiffusionScheduler, record_steps: bool
    ) -> None:
        super().__init__(recorder, scheduler, record_steps, _FEATURES)
        self._recorder, self._core = recorder, scheduler

    def round(self, batch: DenoiseBatch, start_ns: int, end_ns: int) -> None:
        self._note_run(batch.features, start_ns, StepRun(1, end_ns))

    def batch(self, batch: DenoiseBatch, outcome: BatchOutcome) -> None:
        """No-op: the rounds of a batch are recorded instead."""

    def commits(self, commits: Sequence[Commit], now_ns: int) -> None:
        """Record front-end delays of first blocks, which depend on the blocks that become final together."""
        if not self._notes_late:
            return
        for commit in commits:
            request = commit.request
            if request.first_tick == request.last_tick:
                late_ns = self._front_end.late_ns(request.prompt_tokens, len(commits))
                self._views.late_ns[request.visit] = late_ns

    def timed_out(self, requests: list[Request]) -> None:
        for request in requests:
            finish_ns = max(request.deadline_ns, int(self._recorder.ready_ns[request.visit]))
            self._forget_unseen_blocks(request, finish_ns)
        super().timed_out(requests)

    def _forget_unseen_blocks(self, request: Request, finish_ns: int) -> None:
        """Remove the blocks committed after the client had timed out."""
        if request.first_tick < 0:
            return
        first = int(self._recorder.first_tokens(np.array(request.prompt_tokens)))
        block, front_end = self._recorder.block_tokens, self._recorder.frontend
        ends, emitting, tokens = self._ends, list(_emitting(request)), 0
        late_ns = self._recorder.late_by(request.visit)
        for index, step in enumerate(emitting):
            tokens = first + index * block
            if ends.one(step) + front_end.token_ns(tokens) + late_ns > finish_ns:
                self._keep(request, emitting[:index], tokens - (block if index else first))
                return

    def _keep(self, request: Request, emitting: list[int], tokens: int) -> None:
        assert isinstance(request, DiffusionRequest)
        request.first_tick, request.last_tick = (emitting[0], emitting[-1]) if emitting else (-1, -1)
        request.gaps = [gap for gap in request.gaps or () if gap[1] <= request.last_tick]
        del request.rounds_per_block[len(emitting) :]
        request.generated = tokens

    def ended(self, requests: list[Request], outcome: Outcome | Onward) -> None:
        super().ended(requests, outcome)
        for request in requests:
            assert isinstance(request, DiffusionRequest)
            self._recorder.rounds[request.row] += sum(request.rounds_per_block)

    def record(self) -> InstanceRecord:
        record = super().record()
        record.of_kind = self._core.totals
        return record


def _emitting(request: Request) -> Iterator[int]:
    """The rounds that committed its blocks."""
    after = dict(request.gaps or ())
    step = request.first_tick
    while step < request.last_tick:
        yield step
        step = after.get(step, step + 1)
    yield step
