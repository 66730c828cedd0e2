"""The step log of block diffusion: a row for every round, as `blis_py.traces.steplog` describes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from blis_py.core.diffusion import DiffusionScheduler
from blis_py.core.diffusion_request import Commit, DenoiseBatch, DiffusionRequest
from blis_py.core.request import Request
from blis_py.traces.steplog import StepLog
from blis_py.traces.steplog_columns import BLOCK_STEP_KINDS
from engine.clock import Clock
from engine.diffusion.executor import RunningBatch
from engine.sequence import Sequence as Running
from engine.steplog import StepRecorder, Times
from engine.timing import GpuSpan


@dataclass(slots=True)
class Round:
    """A round: when its parts ended (0 = it did not come to that), and what the model had to do."""

    start_ns: int
    scheduled_ns: int
    prepared_ns: int
    rows: int
    """Rows of logits."""
    commits: int
    """Blocks that were final when it began."""
    launched_ns: int = 0
    stepped_ns: int = 0
    span: GpuSpan | None = None
    """On CUDA, of its work."""
    launch_bound: bool = False
    """Whether the GPU waited for the host to the end; set once its times have been read."""
    launching_ns: int = 0
    """Host time from the first launch to the last; the same."""

    def times(self, end_ns: int) -> Times:
        launched = self.launched_ns or end_ns
        stepped = self.stepped_ns or end_ns
        gpu_ns = stepped - self.prepared_ns
        if self.span is not None:
            gpu_ns, self.launch_bound = self.span.measured()
            self.launching_ns = self.span.launching_ns
        return (
            self.start_ns,
            end_ns,
            self.scheduled_ns - self.start_ns,
            self.prepared_ns - self.scheduled_ns,
            launched - self.prepared_ns,
            stepped - launched,
            end_ns - stepped,
            gpu_ns,
        )


class RoundRecorder(StepRecorder):
    """The step log of a running engine for block diffusion."""

    def __init__(self, meta: dict[str, Any]) -> None:
        super().__init__(meta)
        self._lists["committed_ids"] = {}
        self._blocks: list[tuple[int, int, int, int]] = []
        """Batch of every round, and the blocks denoised, committing and of prompt."""
        self._block_rounds: dict[int, tuple[int, ...]] = {}
        self._batches = 0
        self._members = (0, 0, 0)
        """Waiting and running requests and blocks in use in the rounds of the current batch."""

    def members(self, batch: DenoiseBatch, state: tuple[int, int, int]) -> None:
        """Note the requests in the batch whose rounds follow.

        Args:
            state: requests that wait and run, and KV blocks in use.
        """
        index, lists = self.steps, self._lists
        lists["decode_ids"][index] = _rows(batch.denoise)
        if batch.prefills:
            lists["prefill_ids"][index] = _rows(request for request, _ in batch.prefills)
            lists["prefill_chunks"][index] = tuple(tokens for _, tokens in batch.prefills)
        for name, requests in (("admitted_ids", batch.admitted), ("preempted_ids", batch.preempted)):
            if requests:
                lists[name][index] = _rows(requests)
        self._members = state

    def round(
        self,
        batch: DenoiseBatch,
        past: Round,
        end_ns: int,
        *,
        bucket: int,
        committed: Iterable[Request] = (),
        finished: Iterable[Request] = (),
        failed: bool = False,
    ) -> None:
        """End a round; the rounds of a batch follow each other."""
        ids = _rows(committed)
        if ids:
            self._lists["committed_ids"][self.steps] = ids
        is_first = not self._blocks or self._blocks[-1][0] != self._batches
        features = batch.round_features(past.rows, past.commits, is_first)
        self._blocks.append(
            (self._batches, features.denoise_blocks, features.commit_blocks, features.prefill_blocks)
        )
        times = past.times(end_ns)
        self._states.append(self._members)
        self.done(
            batch,
            times,
            finished,
            bucket=bucket,
            failed=failed,
            launch_bound=past.launch_bound,
            launching_ns=past.launching_ns,
        )

    def batch_over(self) -> None:
        """Start the next batch."""
        self._batches += 1

    def log(self) -> StepLog:
        log = super().log()
        numbers = [name for name, kind in BLOCK_STEP_KINDS.items() if kind == "int"]
        for index, name in enumerate(numbers):
            log.steps[name] = [row[index] for row in self._blocks]
        return log

    def _requests(self) -> dict[str, list[Any]]:
        table = super()._requests()
        return table | {"block_rounds": [self._block_rounds[number] for number in table["number"]]}

    def _request(self, sequence: Running, enqueue_ns: int, prompt_blocks: int) -> tuple[Any, ...]:
        assert isinstance(sequence.request, DiffusionRequest)
        self._block_rounds[sequence.index] = tuple(sequence.request.rounds_per_block)
        return super()._request(sequence, enqueue_ns, prompt_blocks)


class TimedRounds:
    """The rounds of a batch with a stop watch; see `engine.diffusion.loops.Rounds`.

    To be made when the batch has just been planned.
    """

    def __init__(
        self,
        recorder: RoundRecorder,
        clock: Clock,
        scheduler: DiffusionScheduler,
        batch: DenoiseBatch,
        start_ns: int,
    ) -> None:
        self._recorder, self._clock, self._batch = recorder, clock, batch
        self.block_tokens = scheduler.diffusion.block_tokens
        state = (len(scheduler.waiting), len(scheduler.running), scheduler.blocks_in_use())
        recorder.members(batch, state)
        self._running: RunningBatch | None = None
        self._past: list[Round] = []
        self._start_ns = start_ns
        self._prepared_ns = self._scheduled_ns = clock.now_ns()

    def prepared(self, running: RunningBatch) -> None:
        """The batch is on the device."""
        self._running = running
        self._prepared_ns = self._clock.now_ns()

    @property
    def has_prompts(self) -> bool:
        return bool(self._batch.prefills)

    def forward(self) -> None:
        assert self._running is not None
        rows = self._running.rows_of_logits
        self._past.append(
            Round(self._start_ns, self._scheduled_ns, self._prepared_ns, sum(rows), rows.count(0))
        )
        if self._running.on_cuda:
            self._past[-1].span = span = GpuSpan()
            self._running.launched = span.end
            span.begin()
        self._clock.computing(self._batch.features.tokens)
        self._running.forward()
        self._past[-1].launched_ns = self._clock.now_ns()

    def step(self) -> list[bool]:
        assert self._running is not None
        done = self._running.step()
        last = self._past[-1]
        if last.span is not None and not last.span.ended:
            last.span.end()
        last.stepped_ns = self._clock.now_ns()
        self._clock.between_steps()
        self.goes_on(last.stepped_ns)
        return done

    def goes_on(self, now_ns: int) -> None:
        """Another round begins at this time, if there is one."""
        self._start_ns = self._scheduled_ns = self._prepared_ns = now_ns

    def over(self, end_ns: int, commits: Sequence[Commit]) -> None:
        """After the scheduler has processed the outcome."""
        self._write(
            end_ns,
            committed=[commit.request for commit in commits],
            finished=[commit.request for commit in commits if commit.finished],
        )

    def failed(self, end_ns: int, gone: Sequence[Running]) -> None:
        """There was an error on the way, and these sequences have ended."""
        if not self._past:
            self._past.append(Round(self._start_ns, self._scheduled_ns, self._prepared_ns, 0, 0))
        self._past[-1].span = None
        self._write(end_ns, finished=[sequence.request for sequence in gone], failed=True)

    def _write(self, end_ns: int, **last: Any) -> None:
        bucket = 0 if self._running is None else self._running.bucket
        *inner, final = self._past
        for past in inner:
            self._recorder.round(self._batch, past, past.stepped_ns, bucket=bucket)
        self._recorder.round(self._batch, final, end_ns, bucket=bucket, **last)
        self._recorder.batch_over()


def _rows(requests: Iterable[Request]) -> tuple[int, ...]:
    return tuple(request.row for request in requests)
