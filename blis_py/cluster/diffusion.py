"""A simulated block-diffusion instance: the scheduler core on a clock that a latency model moves.

The twin of the engine's loop. The model is replaced by the number of rounds each block takes; everything
else, from admission to the commit, is decided by `DiffusionScheduler`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from blis_py.cluster.diffusion_record import DiffusionRun
from blis_py.core.diffusion import DiffusionScheduler
from blis_py.core.diffusion_log import DiffusionLog
from blis_py.core.diffusion_request import Batch, DiffusionRequest, Outcome
from blis_py.latency.base import LatencyModel


@dataclass(frozen=True, slots=True)
class DiffusionCosts:
    """Host time that the execution switches are about; the rounds themselves are the latency model's."""

    schedule_ns: int = 0
    """Each return to the scheduler: what re-looping saves."""
    allocator_call_ns: int = 0
    """Each call that takes or gives back a slot or KV blocks: what reuse in place saves."""


class DiffusionInstance:
    """Receive, schedule, let rounds pass, finish, until nobody is left.

    Rounds between two finishes are passed without asking the scheduler, which would decide the same:
    `single_step` asks it after every round, for comparison (with `DiffusionCosts` of zero).

    Args:
        scheduler: fresh.
        rounds: forwards that each block of each request takes, by `request.row`.
    """

    def __init__(
        self,
        scheduler: DiffusionScheduler,
        latency: LatencyModel,
        rounds: Sequence[Sequence[int]],
        costs: DiffusionCosts | None = None,
        single_step: bool = False,
    ) -> None:
        self.scheduler = scheduler
        self.latency = latency
        self.rounds = rounds
        self.costs = costs or DiffusionCosts()
        self.now_ns = 0
        self._single_step = single_step
        self._block = scheduler.diffusion.block_tokens
        self._inbox: deque[DiffusionRequest] = deque()
        self._calls = 0
        """Allocator calls that have been paid for."""
        self.log = DiffusionLog()

    def run(self, requests: Sequence[DiffusionRequest]) -> DiffusionRun:
        """The main loop: serves the requests, in order of arrival, to the end."""
        scheduler = self.scheduler
        self._inbox = deque(sorted(requests, key=lambda request: request.arrival_ns))
        run = self._run_fdfo if scheduler.diffusion.fdfo else self._run_sync
        while True:
            self._receive()
            batch = scheduler.schedule(self.now_ns)
            if batch is not None:
                self._pay_for_scheduling()
                outcome = run(batch)
                self.log.batch(batch, outcome)
                self.log.commits(scheduler.finish(batch, outcome), self.now_ns)
            elif self._inbox:
                self.now_ns = self._inbox[0].arrival_ns
            else:
                log = self.log
                return DiffusionRun(requests, log.commit_ns, scheduler.counters, log.rows, log.refusals)

    # -- the two modes, twins of `engine.diffusion.loops` ----------------------------------------

    def _run_sync(self, batch: Batch) -> Outcome:
        """Rounds until every block is final; those that are ride along."""
        left = [self._rounds_left(request) for request in batch.denoise]
        rounds = max(left, default=1)
        for past in range(rounds):
            self._pass_round(batch, [max(own - past, 0) for own in left])
        return Outcome([self._block] * len(left), rounds, spent=left)

    def _run_fdfo(self, batch: Batch) -> Outcome:
        """Rounds until the first block is final, or somebody could come in."""
        left = [self._rounds_left(request) for request in batch.denoise]
        rounds = 0
        while True:
            self._pass_round(batch, left)
            rounds += 1
            left = [own - 1 for own in left]
            if 0 in left or batch.prefills or self._single_step or self._must_yield():
                break
        for request, own in zip(batch.denoise, left, strict=True):
            request.dllm_incomplete_ids = own
        return Outcome([0 if own else self._block for own in left], rounds)

    # -- parts -----------------------------------------------------------------------------------

    def _receive(self) -> None:
        scheduler, inbox = self.scheduler, self._inbox
        while inbox and inbox[0].arrival_ns <= self.now_ns:
            request = inbox.popleft()
            refusal = scheduler.add(request)
            if refusal is not None:
                self.log.refused(request)
        if scheduler.first_deadline_ns <= self.now_ns:
            scheduler.expire(self.now_ns)

    def _must_yield(self) -> bool:
        inbox = self._inbox
        while inbox and inbox[0].arrival_ns <= self.now_ns:
            request = inbox.popleft()
            if self.scheduler.add(request) is not None:
                self.log.refused(request)
        return self.scheduler.must_yield(self.now_ns)

    def _rounds_left(self, request: DiffusionRequest) -> int:
        """Rounds until its block is final. Carried on the request, as an engine carries token ids."""
        if request.dllm_incomplete_ids is not None:
            return int(request.dllm_incomplete_ids)
        return self._rounds(request)

    def _rounds(self, request: DiffusionRequest) -> int:
        return self.rounds[request.row][len(request.rounds_per_block)]

    def _pass_round(self, batch: Batch, left: Sequence[int]) -> None:
        """One forward, priced by what its blocks have left to do."""
        rows = sum(map(self._masked_rows, batch.denoise, left))
        features = batch.round_features(rows, commit_blocks=sum(own <= 1 for own in left))
        self.now_ns += self.latency.step_ns(features)

    def _masked_rows(self, request: DiffusionRequest, left: int) -> int:
        """Positions still masked before this round, unmasking being even; none when the block commits."""
        if left <= 1:
            return 0
        open_rows, rounds = self._block - request.known_tokens, self._rounds(request)
        return -(-open_rows * (left - 1) // (rounds - 1))

    def _pay_for_scheduling(self) -> None:
        calls = self.scheduler.counters.allocator_calls
        self.now_ns += self.costs.schedule_ns + self.costs.allocator_call_ns * (calls - self._calls)
        self._calls = calls
