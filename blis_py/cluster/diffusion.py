"""A simulated block-diffusion instance: the scheduler core on SimPy's clock.

The twin of the engine's loop. The model is replaced by the number of rounds each block takes; everything
else, from admission to the commit, is decided by `DiffusionScheduler`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from simpy import Environment, Event

from blis_py.cluster.alarm import Alarm
from blis_py.cluster.instance import AFTER_ARRIVALS
from blis_py.core.diffusion import DiffusionScheduler
from blis_py.core.diffusion_request import Batch, Commit, DiffusionRequest, Outcome
from blis_py.core.request import Request
from blis_py.latency.base import LatencyModel
from blis_py.metrics.record import Outcome as Fate

Waits = Generator[Event, None, None]
NewKeys = Callable[[DiffusionRequest], Sequence[Hashable]]


@dataclass(frozen=True, slots=True)
class DiffusionCosts:
    """Host time that the execution switches are about; the rounds themselves are the latency model's."""

    schedule_ns: int = 0
    """Each return to the scheduler: what re-looping saves."""
    allocator_call_ns: int = 0
    """Each call that takes or gives back a slot or KV blocks: what reuse in place saves."""


class Events(Protocol):
    """Who wants to know what happens on an instance."""

    def round(self, batch: Batch, start_ns: int, end_ns: int) -> None:
        """A round is over; `batch.features` are its own."""
        ...

    def batch(self, batch: Batch, outcome: Outcome) -> None:
        """A batch is over; the scheduler has not been told yet."""
        ...

    def commits(self, commits: Sequence[Commit], now_ns: int) -> None:
        """Blocks became final."""
        ...

    def idle(self, duration_ns: int) -> None:
        """There was nothing to do before the next round."""
        ...

    def unservable(self, request: Request, now_ns: int) -> None:
        """It can never be served."""
        ...

    def timed_out(self, requests: list[Request]) -> None:
        """Their clients gave up."""
        ...

    def ended(self, requests: list[Request], outcome: Fate) -> None:
        """Where requests stand at the end of the run."""
        ...


class DiffusionInstance:
    """An endless loop: receive, schedule, let rounds pass, finish.

    Two shortcuts leave the outcome as it is, as in `blis_py.cluster.instance`. Rounds between two finishes
    pass without asking the scheduler, which would decide the same: `single_step` asks it after every round,
    for comparison (with `DiffusionCosts` of zero). And the loop waits for the simulation's clock only
    where something might still come in between: beyond `undisturbed_until_ns`.

    Args:
        scheduler: fresh.
        rounds: forwards that each block of each request takes, by `request.row`.
        new_keys: content keys of the pages that the commit of a request's block completes, where answers can
            be told apart; `None` = nobody shares them unless the request's own keys go on over its answer.
    """

    def __init__(
        self,
        env: Environment,
        scheduler: DiffusionScheduler,
        latency: LatencyModel,
        log: Events,
        rounds: Sequence[Sequence[int]],
        costs: DiffusionCosts | None = None,
        single_step: bool = False,
        new_keys: NewKeys | None = None,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.latency = latency
        self.log = log
        self.rounds = rounds
        self.costs = costs or DiffusionCosts()
        self.in_flight = 0
        """Requests dispatched here that have not ended."""
        self.undisturbed_until_ns = -1
        """Nobody looks at this instance, and nothing not submitted yet reaches it, before or at this time."""
        self.now_ns = 0
        """The loop's time."""
        self._single_step = single_step
        self._new_keys = new_keys
        self._block = scheduler.diffusion.block_tokens
        self._front_end_ns = latency.frontend.before_enqueue_ns
        self._inbox: deque[tuple[int, Request]] = deque()
        """Requests on their way through the front end, with the time they are ready to be queued."""
        self._sleeper: Alarm | None = None
        """What wakes the loop when it has nothing to do and nobody is expected."""
        self._calls = 0
        """Allocator calls that have been paid for."""
        self._passed = 0
        """Rounds so far."""
        env.process(self.run())

    def run(self) -> Waits:
        """The main loop."""
        scheduler = self.scheduler
        pass_batch = self._run_fdfo if scheduler.diffusion.fdfo else self._run_sync
        while True:
            self._receive()
            batch = scheduler.schedule(self.now_ns)
            if batch is None:
                yield from self._wait_for_work()
                continue
            self._pay_for_scheduling()
            outcome = yield from pass_batch(batch)
            self._finish(batch, outcome)

    # -- the two modes, twins of `engine.diffusion.loops` ----------------------------------------

    def _run_sync(self, batch: Batch) -> Generator[Event, None, Outcome]:
        """Rounds until every block is final; those that are ride along."""
        left = [self._rounds_left(request) for request in batch.denoise]
        rounds = max(left, default=1)
        for past in range(rounds):
            yield from self._pass_round(batch, [max(own - past, 0) for own in left])
        return Outcome([self._block] * len(left), rounds, spent=left)

    def _run_fdfo(self, batch: Batch) -> Generator[Event, None, Outcome]:
        """Rounds until the first block is final, or somebody could come in."""
        left = [self._rounds_left(request) for request in batch.denoise]
        rounds = 0
        while True:
            yield from self._pass_round(batch, left)
            rounds += 1
            left = [own - 1 for own in left]
            if 0 in left or batch.prefills or self._single_step or self._must_yield():
                break
        for request, own in zip(batch.denoise, left, strict=True):
            request.dllm_incomplete_ids = own
        return Outcome([0 if own else self._block for own in left], rounds)

    # -- the router's side -------------------------------------------------------------------------

    def submit(self, request: Request, dispatch_ns: int) -> None:
        """A request dispatched to this instance; it reaches the queue after the front end.

        Dispatch times never go back.
        """
        self.submit_all([(dispatch_ns + self._front_end_ns, request)])

    def submit_all(self, arrivals: Sequence[tuple[int, Request]]) -> None:
        """Requests dispatched to this instance, each with the time it reaches the queue, in this order."""
        self._inbox.extend(arrivals)
        self.in_flight += len(arrivals)
        if self._sleeper is not None and arrivals:
            self._ring_at(arrivals[0][0], self._sleeper)
            self._sleeper = None

    def queue_depth(self, now_ns: int) -> int:
        """Requests waiting to be scheduled."""
        return len(self.scheduler.waiting) + sum(ready <= now_ns for ready, _ in self._inbox)

    @property
    def batch_size(self) -> int:
        """Requests in the running list."""
        return len(self.scheduler.running)

    # -- the loop's parts --------------------------------------------------------------------------

    def _receive(self) -> None:
        """Takes in what has arrived by now, and lets go who has waited too long."""
        self._take_in()
        if self.scheduler.first_deadline_ns <= self.now_ns:
            expired: list[Request] = [*self.scheduler.expire(self.now_ns)]
            self.log.timed_out(expired)
            self.in_flight -= len(expired)

    def _take_in(self) -> None:
        inbox = self._inbox
        while inbox and inbox[0][0] <= self.now_ns:
            ready_ns, request = inbox.popleft()
            assert isinstance(request, DiffusionRequest)
            if self.scheduler.add(request) is not None:
                self.log.unservable(request, ready_ns)
                self.in_flight -= 1

    def _must_yield(self) -> bool:
        self._take_in()
        return self.scheduler.must_yield(self.now_ns)

    def _rounds_left(self, request: DiffusionRequest) -> int:
        """Rounds until its block is final. Carried on the request, as an engine carries token ids."""
        if request.dllm_incomplete_ids is not None:
            return int(request.dllm_incomplete_ids)
        return self._rounds(request)

    def _rounds(self, request: DiffusionRequest) -> int:
        return self.rounds[request.row][len(request.rounds_per_block)]

    def _pass_round(self, batch: Batch, left: Sequence[int]) -> Waits:
        """One forward, priced by what its blocks have left to do."""
        rows = sum(map(self._masked_rows, batch.denoise, left))
        features = batch.round_features(rows, commit_blocks=sum(own <= 1 for own in left))
        start_ns = self.now_ns
        yield from self._until(start_ns + self.latency.step_ns(features))
        self._passed += 1
        self.log.round(batch, start_ns, self.now_ns)

    def _masked_rows(self, request: DiffusionRequest, left: int) -> int:
        """Positions still masked before this round, unmasking being even; none when the block commits."""
        if left <= 1:
            return 0
        open_rows, rounds = self._block - request.known_tokens, self._rounds(request)
        return -(-open_rows * (left - 1) // (rounds - 1))

    def _pay_for_scheduling(self) -> None:
        calls = self.scheduler.totals.allocator_calls
        self.now_ns += self.costs.schedule_ns + self.costs.allocator_call_ns * (calls - self._calls)
        self._calls = calls

    def _finish(self, batch: Batch, outcome: Outcome) -> None:
        if self._new_keys is not None:
            ends = zip(batch.denoise, outcome.accept_lengths, strict=True)
            keys: dict[Request, Sequence[Hashable]]
            keys = {request: self._new_keys(request) for request, accepted in ends if accepted}
            outcome = replace(outcome, keys=keys)
        self.log.batch(batch, outcome)
        commits = self.scheduler.finish(batch, outcome)
        self.log.commits(commits, self.now_ns)
        self.in_flight -= sum(commit.finished for commit in commits)

    # -- time --------------------------------------------------------------------------------------

    def _until(self, time_ns: int) -> Waits:
        if time_ns > self.undisturbed_until_ns:
            yield self._ring_at(time_ns, Alarm(self.env))
        self.now_ns = time_ns

    def _wait_for_work(self) -> Waits:
        before_ns = self.now_ns
        if self._inbox:
            yield from self._until(self._inbox[0][0])
        else:
            self._sleeper = Alarm(self.env)
            yield self._sleeper
            self.now_ns = int(self.env.now)
        self.log.idle(self.now_ns - before_ns)

    def _ring_at(self, time_ns: int, alarm: Alarm) -> Alarm:
        self.env.schedule(alarm, AFTER_ARRIVALS, time_ns - int(self.env.now))
        return alarm

    def stop(self, now_ns: int) -> None:
        """The run ends at `now_ns`, maybe in the middle of a batch: the rounds that are over count."""
        self.scheduler.kv.pool.tick = self._passed
        self.log.ended(list(self.scheduler.running), Fate.RUNNING)
        self.log.ended(list(self.scheduler.waiting), Fate.QUEUED)
