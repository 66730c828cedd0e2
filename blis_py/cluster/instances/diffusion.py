"""Simulated block-diffusion instances: batches of blocks, each denoised over several rounds.

The twin of the engine's loop. The model is replaced by the number of rounds each block takes; everything
else, from admission to the commit, is decided by `DiffusionScheduler`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from blis_py.cluster.instances.instance import IDLE_NS, Events, Instance
from blis_py.cluster.recording.diffusion_recorder import DiffusionInstanceLog, DiffusionRecorder
from blis_py.cluster.recording.observer import Observer
from blis_py.cluster.recording.recorder import Recorder
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.cluster.time.wakeups import WakeupQueue
from blis_py.cluster.topology import Pool
from blis_py.core.diffusion import DiffusionScheduler
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.core.diffusion_request import BatchOutcome, Commit, DenoiseBatch, DiffusionRequest
from blis_py.core.request import Request
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays, LatencyModel
from blis_py.requests.table import RequestTable

NewKeys = Callable[[DiffusionRequest], Sequence[Hashable]]


@dataclass(frozen=True, slots=True)
class DiffusionCosts:
    """Host time affected by the execution switches; the rounds themselves are priced by the latency model."""

    schedule_ns: int = 0
    """Per return to the scheduler: the cost that re-looping saves."""
    allocator_call_ns: int = 0
    """Per call that allocates or frees a slot or KV blocks: the cost that reuse in place saves."""


@dataclass(frozen=True, slots=True)
class BlockDiffusion:
    """The kind of a block-diffusion workload; a `blis_py.cluster.instances.kinds.KindOfRequests`."""

    rounds: Sequence[Sequence[int]]
    """Forward passes of each block, for every request of the table."""
    config: DiffusionConfig = field(default_factory=DiffusionConfig)
    costs: DiffusionCosts = field(default_factory=DiffusionCosts)

    @property
    def name(self) -> str:
        return "diffusion"

    @property
    def block_tokens(self) -> int:
        return self.config.block_tokens

    def describe(self) -> str:
        return self.config.describe()

    def served(self, record_steps: bool, single_step: bool, observer: Observer | None) -> Diffusion:
        return Diffusion(self, record_steps, single_step, observer)


class RoundEvents(Events, Protocol):
    """Events of a block-diffusion instance, for recorders and observers."""

    def round(self, batch: DenoiseBatch, start_ns: int, end_ns: int) -> None:
        """The end of a round; `batch.features` are those of the round."""
        ...

    def batch(self, batch: DenoiseBatch, outcome: BatchOutcome) -> None:
        """The end of a batch; the scheduler is not updated yet."""
        ...

    def commits(self, commits: Sequence[Commit], now_ns: int) -> None:
        """Blocks that became final."""
        ...


class DiffusionInstance(Instance):
    """A block-diffusion instance, simulated round by round.

    Within a batch the scheduler is not called, since its plan would not change.

    Args:
        rounds: forward passes of each block of each request, by `request.row`.
        single_step: call the scheduler after every round, for comparison (with `DiffusionCosts` of zero).
        new_keys: content keys of the pages that the commit of a request's block completes, where answers have
            identities; `None` = they are not shared unless the request's own keys extend over its answer.
    """

    def __init__(
        self,
        wakeups: WakeupQueue,
        scheduler: DiffusionScheduler,
        latency: LatencyModel,
        events: RoundEvents,
        lookahead: Lookahead,
        rounds: Sequence[Sequence[int]],
        costs: DiffusionCosts | None = None,
        single_step: bool = False,
        new_keys: NewKeys | None = None,
    ) -> None:
        super().__init__(wakeups, scheduler, events, lookahead)
        self.scheduler = scheduler
        self.latency = latency
        self.rounds = rounds
        self.costs = costs or DiffusionCosts()
        self._events = events
        self._single_step = single_step
        self._new_keys = new_keys
        self._fdfo = scheduler.diffusion.fdfo
        self._block = scheduler.diffusion.block_tokens
        self._batch: DenoiseBatch | None = None
        """The batch in progress, advanced round by round."""
        self._rounds_done = 0
        """Rounds of the batch that have ended."""
        self._left: list[int] = []
        """Remaining rounds of each of its blocks when the batch began."""
        self._round_end_ns = 0
        self._calls = 0
        """Allocator calls already charged."""
        self.rounds_passed = 0
        """Rounds so far, those of the batch in progress included."""
        self.returns_after: frozenset[int] = frozenset()
        """Numbers of rounds after which the batch returns to the scheduler in any case, as in a recorded run
        that decided on some of the arrivals that the scheduler then saw."""

    def _begin(self) -> int:
        """Begin the next round of the batch, or the first round of a new one."""
        batch = self._batch
        if batch is None:
            self._receive(self.now_ns)
            batch = self.scheduler.schedule(self.now_ns)
            if batch is None:
                return IDLE_NS
            self._pay_for_scheduling()
            self._batch, self._rounds_done = batch, 0
            self._left = [self._rounds_left(request) for request in batch.denoise]
        left = [max(own - self._rounds_done, 0) for own in self._left]
        rows = sum(map(self._masked_rows, batch.denoise, left))
        commits = sum(own <= 1 for own in left)
        features = batch.round_features(rows, commits, is_first=not self._rounds_done)
        self._round_end_ns = self.now_ns + self.latency.step_ns(features)
        return self._round_end_ns

    def _end(self) -> None:
        batch, start_ns = self._batch, self.now_ns
        assert batch is not None
        self.now_ns = self._round_end_ns
        self._rounds_done += 1
        self.rounds_passed += 1
        self._events.round(batch, start_ns, self.now_ns)
        outcome = self._outcome_fdfo(batch) if self._fdfo else self._outcome_sync()
        if outcome is not None:
            self._batch = None
            self._finish(batch, outcome)

    # -- the two modes, twins of `engine.diffusion.loops`: the outcome once the batch is over -------

    def _outcome_sync(self) -> BatchOutcome | None:
        """Rounds until every block is final; blocks that are final ride along."""
        if self._rounds_done < max(self._left, default=1):
            return None
        return BatchOutcome([self._block] * len(self._left), self._rounds_done, spent=self._left)

    def _outcome_fdfo(self, batch: DenoiseBatch) -> BatchOutcome | None:
        """Rounds until the first block is final or a waiting request could be admitted."""
        left = [own - self._rounds_done for own in self._left]
        if not (0 in left or batch.prefills or self._single_step or self._must_yield()):
            return None
        for request, own in zip(batch.denoise, left, strict=True):
            request.dllm_incomplete_ids = own
        return BatchOutcome([0 if own else self._block for own in left], self._rounds_done)

    def _must_yield(self) -> bool:
        self._take_in(self.now_ns)
        return self.rounds_passed in self.returns_after or self.scheduler.must_yield(self.now_ns)

    # -- parts ---------------------------------------------------------------------------------------

    def _rounds_left(self, request: DiffusionRequest) -> int:
        """Rounds until the request's block is final, carried on the request as an engine carries token
        ids."""
        if request.dllm_incomplete_ids is not None:
            return int(request.dllm_incomplete_ids)
        return self._rounds(request)

    def _rounds(self, request: DiffusionRequest) -> int:
        return self.rounds[request.row][len(request.rounds_per_block)]

    def _masked_rows(self, request: DiffusionRequest, left: int) -> int:
        """Positions masked before this round, with even unmasking; none when the block commits."""
        if left <= 1:
            return 0
        open_rows, rounds = self._block - request.known_tokens, self._rounds(request)
        return -(-open_rows * (left - 1) // (rounds - 1))

    def _pay_for_scheduling(self) -> None:
        calls = self.scheduler.totals.allocator_calls
        self.now_ns += self.costs.schedule_ns + self.costs.allocator_call_ns * (calls - self._calls)
        self._calls = calls

    def _finish(self, batch: DenoiseBatch, outcome: BatchOutcome) -> None:
        if self._new_keys is not None:
            ends = zip(batch.denoise, outcome.accept_lengths, strict=True)
            keys: dict[Request, Sequence[Hashable]]
            keys = {request: self._new_keys(request) for request, accepted in ends if accepted}
            outcome = replace(outcome, keys=keys)
        self._events.batch(batch, outcome)
        commits = self.scheduler.finish(batch, outcome)
        self._events.commits(commits, self.now_ns)
        finished: list[Request] = [commit.request for commit in commits if commit.finished]
        if finished:
            self._finished(finished)

    def will_drop(self, request: Request) -> bool:
        return self._batch is not None and not self._answers(self._batch, request)

    def _answers(self, batch: DenoiseBatch, request: Request) -> bool:
        """Whether the work in progress, a round or a whole batch, completes a request."""
        for place, one in enumerate(batch.denoise):
            if one is request:
                is_last = request.generated + self._block - one.known_tokens >= request.target
                return is_last and (not self._fdfo or self._left[place] <= self._rounds_done + 1)
        return False

    def _is_busy(self) -> bool:
        return self._batch is not None

    def _cut(self, now_ns: int) -> None:
        self.scheduler.kv.pool.tick = self.rounds_passed


class Diffusion:
    """The kind of requests that fill blocks by denoising; see `blis_py.cluster.instances.kinds.Kind`."""

    def __init__(
        self, blocks: BlockDiffusion, record_steps: bool, single_step: bool, observer: Observer | None = None
    ) -> None:
        self.request: type[Request] = DiffusionRequest
        self._observer = observer
        self._blocks = blocks
        self._record_steps, self._single_step = record_steps, single_step

    def recorder(self, table: RequestTable, frontend: FrontendDelays, on_the_way_ns: int) -> Recorder:
        return DiffusionRecorder(table, frontend, self._blocks.config.block_tokens, on_the_way_ns)

    def instance(
        self, pool: Pool, wakeups: WakeupQueue, recorder: Recorder, lookahead: Lookahead
    ) -> DiffusionInstance:
        """An instance of the pool, with its log.

        Raises:
            InputError: the pool has KV from outside or bursts of tokens, which block diffusion does not have.
        """
        blocks = self._blocks
        spec = pool.spec
        if spec.kv_source is not None or spec.emission is not None:
            problem = "KV from outside and bursts of tokens are for autoregressive requests"
            raise InputError(problem, key=f"pools.{pool.name}")
        core = DiffusionScheduler(spec.scheduler, blocks.config)
        log = DiffusionInstanceLog(cast(DiffusionRecorder, recorder), core, self._record_steps)
        events = log if self._observer is None else self._observer.beside(len(recorder.logs) - 1, core, log)
        how = (blocks.rounds, blocks.costs, self._single_step)
        return DiffusionInstance(wakeups, core, spec.latency, events, lookahead, *how)
