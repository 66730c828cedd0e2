"""Playback of recorded block-diffusion runs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from blis_py.calibrate._playback import MeasuredTimes, Playback, ready_times
from blis_py.calibrate.composition import Composition
from blis_py.calibrate.diffusion import RoundComposition, without_outcome
from blis_py.calibrate.diffusion_blocks import RecordedBlocks, diffusion_config, rounds_of_each
from blis_py.calibrate.recorded import Lengths, RecordedRun, recorded_requests, scheduler_config
from blis_py.cluster.instances.diffusion import DiffusionCosts, DiffusionInstance, RoundEvents
from blis_py.cluster.recording.diffusion_recorder import DiffusionInstanceLog, DiffusionRecorder
from blis_py.cluster.recording.recorder import Recorder
from blis_py.cluster.time.events import EventQueue
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.cluster.time.wakeups import WakeupQueue
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion import DiffusionScheduler
from blis_py.core.diffusion_request import BatchOutcome, Commit, DenoiseBatch, DiffusionRequest
from blis_py.core.request import Request
from blis_py.latency.base import LatencyModel
from blis_py.metrics.record import Outcome as Fate
from blis_py.metrics.visits import Onward
from blis_py.requests.table import RequestTable
from blis_py.traces.steplog import Numbers, StepLog

NEVER_DONE = 1 << 40
"""Rounds of a block whose request left before the block was final."""


class RoundPlayback(Playback):
    """Blocks take their recorded rounds; their pages can be shared afterwards, as in the engine."""

    def __init__(
        self,
        log: StepLog,
        recorded: Sequence[RecordedRun],
        ready_ns: Sequence[int],
        latency: LatencyModel,
        core: DiffusionScheduler,
        rounds: Sequence[Sequence[int]],
        costs: DiffusionCosts,
    ) -> None:
        super().__init__(log, recorded, ready_ns, latency)
        self._core, self._rounds, self._costs = core, rounds, costs
        self._instance: DiffusionInstance | None = None
        self.returns_after: frozenset[int] = frozenset()

    @property
    def passed(self) -> int:
        """Rounds so far."""
        return 0 if self._instance is None else self._instance.rounds_passed

    def compositions(self) -> list[Composition]:
        tap = _RoundTap()
        self._serve(tap)
        return [*tap.compositions]

    def _recorder(self, table: RequestTable) -> Recorder:
        return DiffusionRecorder(table, self.latency.frontend, self._core.diffusion.block_tokens)

    def _served(self, recorder: Recorder) -> int:
        log = DiffusionInstanceLog(cast(DiffusionRecorder, recorder), self._core, record_steps=False)
        return self._serve(log)

    def _serve(self, events: RoundEvents) -> int:
        requests = [_of_blocks(one.request) for one in self.recorded]
        prompt_keys = [len(request.block_keys) for request in requests]
        core = self._core

        def new_keys(request: DiffusionRequest) -> Sequence[Hashable]:
            """Keys of the pages that the commit of its block completes."""
            if not core.kv.prefix_caching:
                return ()
            row, end = request.row, request.computed + core.diffusion.block_tokens
            pages, first = end // core.config.block_size, len(request.block_keys) - prompt_keys[row]
            return self.recorded[row].published[first : pages - prompt_keys[row]]

        unbounded = Lookahead()
        wakeups = WakeupQueue(EventQueue(), unbounded)
        how = (self._rounds, self._costs)
        self._instance = DiffusionInstance(
            wakeups, core, self.latency, events, unbounded, *how, new_keys=new_keys
        )
        self._instance.returns_after = self.returns_after
        return self._submitted(wakeups, self._instance, requests)


def as_measured(log: StepLog) -> RoundPlayback:
    """A playback with measured round times; requests arrive at the engine's boundaries."""
    core = DiffusionScheduler(scheduler_config(log), diffusion_config(log))
    rounds = [[*own, NEVER_DONE] for own in log.requests["block_rounds"]]
    latency = MeasuredTimes(log, lambda: playback.passed)
    ready_ns = log.requests["enqueue_ns"]
    playback = RoundPlayback(log, recorded_requests(log), ready_ns, latency, core, rounds, DiffusionCosts())
    playback.returns_after = _undecided_returns(log)
    return playback


def _undecided_returns(log: StepLog) -> frozenset[int]:
    """Numbers of rounds after which a batch returned to the scheduler, and it is not known for which request.

    An engine decides on those that wait by then; of one that comes between the decision and the scheduler's
    call, and may overtake them, the log says only that the same call saw it.
    """
    batches, arrived = log.steps["batch"], _until_each_round(log, "enqueue_ns")
    present = arrived - _until_each_round(log, "finish_ns")
    members = [len({*a, *b}) for a, b in zip(log.steps["decode_ids"], log.steps["prefill_ids"], strict=True)]

    def candidates(i: int) -> int:
        waited = max(present[i - 1] - members[i - 1], 0)
        return int(waited + arrived[i] - arrived[i - 1]) if arrived[i] > arrived[i - 1] else 0

    return frozenset(i for i in range(1, len(arrived)) if batches[i] != batches[i - 1] and candidates(i) > 1)


def _until_each_round(log: StepLog, column: str) -> np.ndarray:
    """The number of requests with a time in this column, until each round begins."""
    times = np.array(log.requests[column], dtype=np.int64)
    return np.searchsorted(np.sort(times[times >= 0]), log.steps["start_ns"], side="right")


def as_predicted(
    log: StepLog,
    latency: LatencyModel,
    config: SchedulerConfig,
    blocks: RecordedBlocks,
    lengths: Lengths | None = None,
) -> RoundPlayback:
    """A playback with round times from a latency model; requests arrive at their recorded times.

    Args:
        blocks: the mode, and the rounds of every block, possibly other than the engine's.
    """
    core = DiffusionScheduler(config, blocks.config)
    recorded = recorded_requests(log, block_size=config.block_size, lengths=lengths)
    rounds = rounds_of_each(log, recorded, blocks, config.max_model_len)
    ready_ns = ready_times(recorded, latency)
    return RoundPlayback(log, recorded, ready_ns, latency, core, rounds, blocks.costs)


def _of_blocks(old: Request) -> DiffusionRequest:
    return DiffusionRequest(
        old.id,
        old.arrival_ns,
        old.prompt_tokens,
        old.output_tokens,
        old.max_tokens,
        old.priority,
        old.deadline_ns,
        old.block_keys,
        old.row,
    )


class _RoundTap:
    """Recorder of the composition of each round; see `RoundEvents`."""

    def __init__(self) -> None:
        self.compositions: list[RoundComposition] = []
        self._batches = 0
        self._begins = True

    def round(self, batch: DenoiseBatch, start_ns: int, end_ns: int) -> None:
        first = self._begins
        self._begins = False
        self.compositions.append(
            RoundComposition(
                decodes=_numbers(batch.denoise),
                prefills=_numbers([request for request, _ in batch.prefills]) if first else (),
                chunks=tuple(tokens for _, tokens in batch.prefills) if first else (),
                admitted=_numbers(batch.admitted) if first else (),
                preempted=_numbers(batch.preempted) if first else (),
                features=without_outcome(batch.features),
                batch=self._batches,
                committed=(),
            )
        )

    def batch(self, batch: DenoiseBatch, outcome: BatchOutcome) -> None:
        self._batches += 1
        self._begins = True

    def commits(self, commits: Sequence[Commit], now_ns: int) -> None:
        committed = _numbers([commit.request for commit in commits])
        self.compositions[-1] = replace(self.compositions[-1], committed=committed)

    def idle(self, duration_ns: int) -> None: ...

    def unservable(self, request: Request, now_ns: int) -> None: ...

    def timed_out(self, requests: list[Request]) -> None: ...

    def finished(self, requests: list[Request], end_ns: int) -> None: ...

    def goes_on(self, requests: list[Request], how: Onward, now_ns: int) -> None: ...

    def ended(self, requests: list[Request], outcome: Fate) -> None: ...


def _numbers(requests: Sequence[Request]) -> Numbers:
    return tuple(request.row for request in requests)
