"""A simulated engine instance: a scheduler core on SimPy's clock, independent of what its steps are.

What differs between kinds of requests, how a step is begun and ended, is in a file of each; see `kinds`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Final, Protocol

from blis_py.cluster.instances.dirty_set import DirtySet, SeveralDirtySets
from blis_py.cluster.instances.outlet import Outlet
from blis_py.cluster.recording.instance_log import InstanceLog
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.cluster.time.wakeups import Wakeable, WakeupQueue
from blis_py.core.blocks import CacheChanges
from blis_py.core.lifecycle import Lifecycle
from blis_py.core.request import FINISHED, NEVER_NS, NO_VISIT, FinishReason, Request
from blis_py.core.step import Step
from blis_py.metrics.record import Outcome
from blis_py.metrics.visits import Onward

IDLE_NS: Final = -1
"""Returned when there is nothing to compute."""
_TIMEOUT: Final = FinishReason.TIMEOUT
_next: Final = next  # native code would look it up at every wake-up


class Events(Protocol):
    """Events of an instance, for recorders and observers: the outcome of requests."""

    def idle(self, duration_ns: int) -> None:
        """Idle time before the next step."""
        ...

    def unservable(self, request: Request, now_ns: int) -> None:
        """A request that can never be served."""
        ...

    def timed_out(self, requests: list[Request]) -> None:
        """Requests whose clients timed out, at the latest during the step that has just ended."""
        ...

    def finished(self, requests: list[Request], end_ns: int) -> None:
        """Requests whose last tokens were emitted by the step that ended then."""
        ...

    def goes_on(self, requests: list[Request], how: Onward, now_ns: int) -> None:
        """Requests whose visits end now and that continue elsewhere. They are settled."""
        ...

    def ended(self, requests: list[Request], outcome: Outcome) -> None:
        """Final state of requests when the run ends. They are settled."""
        ...


class Horizon:
    """A bound of the lookahead of single instances. A class, as native code looks up methods of protocols."""

    def is_quiet(self, index: int, time_ns: int) -> bool:
        """Whether no external event reaches the instance before or at a time, those of the ingress apart."""
        raise NotImplementedError


class Instance(Wakeable):
    """A simulated instance, an endless loop: begin a step, let its time pass, end it.

    The loop keeps its own time and yields to the simulation clock only where an external event may still
    reach it: beyond the lookahead.

    Args:
        scheduler: a new scheduler, driven by this instance only.
        events: receives the events.
    """

    def __init__(
        self, wakeups: WakeupQueue, scheduler: Lifecycle, events: Events, lookahead: Lookahead
    ) -> None:
        super().__init__(wakeups)
        self.in_flight = 0
        """Requests dispatched to this instance that have not ended."""
        self._unseen = 0
        """Requests that will be dispatched to it and do not count as in flight yet."""
        self.now_ns = 0
        """The loop's own time: the latest step boundary processed."""
        self._life = scheduler
        self._fate = events
        self.outlet: Outlet | None = None
        """Destination of requests whose visit has ended; None if they are finished."""
        self._horizon: Horizon | None = None
        self._member = 0
        self._log = events if isinstance(events, InstanceLog) else None
        """The event receiver if it is an `InstanceLog` itself: native code calls it without method lookup."""
        self._lookahead = lookahead
        self._wakeups = wakeups
        self._inbox: deque[tuple[int, Request]] = deque()
        """Requests passing through the front end, with the time at which they can be queued."""
        self._dirty: DirtySet | None = None
        self._when_idle: Callable[[int], None] | None = None
        self._index = 0
        self._woken_ns = 0
        self.block_size = scheduler.config.block_size
        self._loop = self.run()

    def run(self) -> Generator[int, None, None]:
        """The main loop. It yields the time it waits for, which may change while it waits."""
        inbox, lookahead = self._inbox, self._lookahead
        while True:
            if self._dirty is not None:
                self._dirty.add(self._index)
            end_ns = self._begin()
            if end_ns != IDLE_NS:
                if (
                    end_ns > lookahead.until_ns
                    and not (end_ns == self._woken_ns and self._wakeups.precedes(self, end_ns))
                    and (end_ns > lookahead.parts_until_ns or not self._is_alone(end_ns))
                ):
                    yield end_ns
                self._end()
                continue
            next_ns = inbox[0][0] if inbox else NEVER_NS
            if self._life.loads_kv:
                next_ns = min(next_ns, self._life.next_change_ns(self.now_ns))
            if next_ns <= lookahead.until_ns and next_ns != NEVER_NS:
                self._resume(next_ns)
            else:
                if self._when_idle is not None and self.is_idle:
                    self._when_idle(self.now_ns)
                    self._when_idle = None
                yield next_ns
                self._resume(self._woken_ns)

    def wake(self, time_ns: int) -> None:
        """Resume the loop until it has to wait again."""
        self._woken_ns = time_ns
        until_ns = _next(self._loop)
        if until_ns != NEVER_NS:
            self._wakeups.set(self, until_ns)

    def bound_by(self, horizon: Horizon, index: int) -> None:
        """Let this instance, which requests are handed over to, run ahead as far as the horizon permits."""
        self._horizon, self._member = horizon, index

    def _is_alone(self, time_ns: int) -> bool:
        """Whether the step boundary at that time, ahead of the clock, neither sees external events nor has
        effects outside: no request takes blocks for KV on its way there, or gives them up."""
        life, inbox, horizon = self._life, self._inbox, self._horizon
        if horizon is None or (inbox and inbox[0][0] <= time_ns):
            return False
        if life.has_candidates or life.kv_under_way:
            return False
        return horizon.is_quiet(self._member, time_ns)

    @property
    def step_end_ns(self) -> int:
        """The earliest end of the step in progress; -1 if there is none."""
        return self.wakes_ns if self._is_busy() else -1

    # -- what a kind of request supplies -----------------------------------------------------------

    def _begin(self) -> int:
        """Begin the next unit of work and return its end time; `IDLE_NS` if there is nothing to do."""
        raise NotImplementedError

    def _end(self) -> None:
        """End the unit of work in progress."""
        raise NotImplementedError

    def _truncate(self, time_ns: int) -> None:
        """Handle an unforeseen arrival at `time_ns`."""

    def _blocks_in_use(self, now_ns: int) -> int:
        """KV blocks in use at `now_ns`, during the work in progress."""
        return self._life.kv.pool.in_use

    def _take_blocks(self, now_ns: int) -> None:
        """Allocate the blocks of every step planned by now, the one in progress included."""

    def _cut(self, now_ns: int) -> None:
        """Stop the run at `now_ns`, possibly within a step: steps that have ended count."""
        raise NotImplementedError

    # -- the router's side -----------------------------------------------------------------------

    def submit(self, arrivals: Sequence[tuple[int, Request]]) -> None:
        """Accept requests dispatched to this instance in this order, each with its time of queueing."""
        if self.outlet is not None:
            for _, request in arrivals:
                self.outlet.enters(request)
        self._queue(arrivals)

    def take_over(self, request: Request, ready_ns: int) -> None:
        """Accept a request from the outlet itself, with its time of queueing."""
        inbox = self._inbox
        if inbox and ready_ns < inbox[-1][0]:
            self._queue([(ready_ns, request)])
            return
        asleep = not inbox
        inbox.append((ready_ns, request))
        self.in_flight += 1
        if self._dirty is not None:
            self._dirty.add(self._index)
        if asleep:
            self._wake(ready_ns)

    def _queue(self, arrivals: Sequence[tuple[int, Request]]) -> None:
        asleep = not self._inbox
        if not asleep and arrivals and arrivals[0][0] < self._inbox[-1][0]:
            asleep = self._overtake(arrivals)
        else:
            self._inbox.extend(arrivals)
        self.in_flight += len(arrivals)
        if self._dirty is not None:
            self._dirty.add(self._index)
        if asleep and arrivals:
            self._wake(arrivals[0][0])

    def _overtake(self, arrivals: Sequence[tuple[int, Request]]) -> bool:
        """Add requests of which some are ready before others on the way; whether they are first of all."""
        first_ns = self._inbox[0][0]
        queue = sorted([*self._inbox, *arrivals], key=_ready_ns)
        self._inbox.clear()
        self._inbox.extend(queue)
        return arrivals[0][0] < first_ns

    def cancel(self, request: Request, now_ns: int) -> None:
        """Evict a request at the end of the step in progress, as if its client timed out now."""
        if any(one is request for _, one in self._inbox):
            request.deadline_ns = now_ns
            return
        self._life.cancel(request, now_ns)
        if self._is_busy():
            self._truncate_at(now_ns)
        else:
            self._wakeups.set(self, now_ns)

    @property
    def most_tokens(self) -> int:
        """Longest request that can be served here, its answer included."""
        return self._life.most_tokens

    def will_drop(self, request: Request) -> bool:
        """Whether a request whose time is over is dropped at the end of the step in progress.

        False where that is not known before, or it has ended.
        """
        return False

    def let_go(self, request: Request, now_ns: int) -> None:
        """Free the blocks of a completed request that kept them, at the end of the step in progress."""
        self._life.let_go(request, now_ns)
        if self._is_busy() or self._life.has_candidates or self._when_idle is not None:
            self._wake(now_ns)
        else:  # requests in its inbox find the blocks when they are ready
            self._life.free_let_go()
            if self._dirty is not None:
                self._dirty.add(self._index)

    def kv_ready_at(self, request: Request, now_ns: int) -> None:
        """The KV that a request waits for is there now."""
        self._life.kv_ready_at(request, now_ns)
        self._wake(now_ns)

    def set_deadline(self, request: Request, deadline_ns: int, now_ns: int) -> None:
        """Change the deadline of a request in its queue or waiting for KV."""
        self._life.set_deadline(request, deadline_ns)
        if deadline_ns >= 0:
            self._wake(max(deadline_ns, now_ns))

    def expect(self, requests: int, now_ns: int, unseen: bool = False) -> None:
        """Remain until further requests have been submitted; negative = no more.

        Args:
            unseen: they do not count as in flight yet.
        """
        if unseen:
            self._unseen += requests
        else:
            self.in_flight += requests
        if self._dirty is not None:
            self._dirty.add(self._index)
        if self._when_idle is not None and self.is_idle:
            self._wake(now_ns)

    def watch_steps(self, call: Callable[[Step, int], None]) -> None:
        """Call with every step that has ended and the number of identical ones, before the scheduler is
        updated."""
        raise NotImplementedError

    def watch_prompts(self, call: Callable[[Step, int, int], None]) -> None:
        """Call with every step that computes prompts, its begin and its end, when it is planned."""
        raise NotImplementedError

    @property
    def requests(self) -> list[Request]:
        """All requests that have been dispatched to it and have not ended."""
        return [*self._life.running, *self._life.queued, *(request for _, request in self._inbox)]

    def committed_beside(self, request: Request) -> int:
        """See `Lifecycle.committed_beside`."""
        return self._life.committed_beside(request)

    def free_places(self, request: Request) -> int:
        """See `Lifecycle.free_places`."""
        return self._life.free_places(request)

    def receiving_beside(self, request: Request) -> list[Request]:
        """Requests that hold blocks for KV on its way to where a request is to run."""
        return self._life.receiving_beside(request)

    @property
    def is_idle(self) -> bool:
        """Whether it has no request, no step in progress, and no blocks that another instance reads."""
        busy = self.in_flight or self._unseen or self._is_busy()
        return not busy and not self._life.holds

    def when_idle(self, call: Callable[[int], None]) -> None:
        """Call once, with the time, when the instance becomes idle."""
        self._when_idle = call

    def watch(self, dirty: DirtySet, index: int) -> None:
        """Add this instance to `dirty` under that index whenever its state may have changed."""
        self._index = index
        if self._dirty is None or self._dirty is dirty:
            self._dirty = dirty
        elif not isinstance(self._dirty, SeveralDirtySets):
            self._dirty = SeveralDirtySets([self._dirty, dirty])
        elif dirty not in self._dirty.sets:
            self._dirty.sets.append(dirty)

    def queue_depth(self, now_ns: int) -> int:
        """Number of requests waiting to be scheduled."""
        waiting, inbox = self._life.queue_depth, self._inbox
        if inbox and inbox[0][0] <= now_ns:
            waiting += sum(ready_ns <= now_ns for ready_ns, _ in inbox)
        return waiting

    @property
    def batch_size(self) -> int:
        """Number of requests in the running list."""
        return len(self._life.running)

    def kv_utilization(self, now_ns: int) -> float:
        """Share of its KV blocks in use, the step in progress included."""
        pool = self._life.kv.pool
        return self._blocks_in_use(now_ns) / pool.total

    def log_cache(self) -> CacheChanges:
        """A log, from now on, of what the prefix cache begins and ceases to hold."""
        return self._life.kv.follow()

    def settle_cache(self, now_ns: int) -> None:
        """Remove from the cache what the steps planned by now overwrite, the one in progress included."""
        self._take_blocks(now_ns)
        self._life.kv.pool.name_reserved()

    @property
    def expects(self) -> bool:
        """Whether a request is on the way to its queue."""
        return bool(self._inbox)

    # -- arrivals and departures -------------------------------------------------------------------

    def _receive(self, now_ns: int) -> None:
        """Queue the requests that have arrived by now, and drop those whose deadline has passed."""
        inbox, life = self._inbox, self._life
        if inbox and inbox[0][0] <= now_ns:
            self._take_in(now_ns)
        if life.first_deadline_ns <= now_ns:
            expired = life.expire(now_ns)
            if expired:
                self._fate.timed_out([request for request in expired if request.visit != NO_VISIT])
                self.in_flight -= len(expired)

    def _take_in(self, now_ns: int) -> None:
        inbox, life = self._inbox, self._life
        while inbox and inbox[0][0] <= now_ns:
            ready_ns, request = inbox.popleft()
            if life.add(request) is not None:
                request.status = FINISHED
                self._fate.unservable(request, ready_ns)
                self.in_flight -= 1

    def _finished(self, requests: list[Request]) -> None:
        """Handle requests whose last tokens came with the step that has just ended."""
        self.in_flight -= len(requests)
        if self._life.withdraws_late:
            requests = self._without_timed_out(requests)
        if self.outlet is not None and requests:
            requests = self._hand_on(requests, self.outlet)
        if not requests:
            return
        if self._log is not None:
            self._log.finished(requests, self.now_ns)
        else:
            self._fate.finished(requests, self.now_ns)

    def _without_timed_out(self, requests: list[Request]) -> list[Request]:
        """Report requests whose clients timed out; returns the others."""
        if all(request.finish_reason is not _TIMEOUT for request in requests):
            return requests
        self._fate.timed_out([request for request in requests if request.finish_reason is _TIMEOUT])
        return [request for request in requests if request.finish_reason is not _TIMEOUT]

    def _hand_on(self, requests: list[Request], outlet: Outlet) -> list[Request]:
        """Close the visits of requests that continue elsewhere; returns those that are finished."""
        if len(requests) == 1:
            way = outlet.way_on(requests[0])
            if way is None:
                return requests
            self._goes_on(requests, way)
            outlet.take(requests, self.now_ns)
            return []
        finished: list[Request] = []
        onward: list[Request] = []
        for request in requests:
            how = outlet.way_on(request)
            if how is None:
                finished.append(request)
            else:
                onward.append(request)
                self._goes_on([request], how)
        if onward:
            outlet.take(onward, self.now_ns)
        return finished

    def _goes_on(self, requests: list[Request], how: Onward) -> None:
        if self._log is not None:
            self._log.goes_on(requests, how, self.now_ns)
        else:
            self._fate.goes_on(requests, how, self.now_ns)

    # -- time --------------------------------------------------------------------------------------

    def _resume(self, time_ns: int) -> None:
        """Resume after an idle period."""
        if self._log is not None:
            self._log.idle(time_ns - self.now_ns)
        else:
            self._fate.idle(time_ns - self.now_ns)
        self.now_ns = time_ns

    def _wake(self, time_ns: int) -> None:
        """Handle an unforeseen arrival at `time_ns`, whether busy or idle."""
        if self._is_busy():
            self._truncate_at(time_ns)
        else:
            self._wakeups.set(self, min(time_ns, self.wakes_ns))

    def _truncate_at(self, time_ns: int) -> None:
        """Handle an arrival during work. At the exact end of a step the next one has begun if this instance's
        turn at that time has passed."""
        self._truncate(time_ns + 1 if self._wakeups.has_passed(self, time_ns) else time_ns)

    def _is_busy(self) -> bool:
        """Whether work has begun and not ended."""
        raise NotImplementedError

    def stop(self, now_ns: int) -> None:
        """End the run at `now_ns`: report the final state of every request."""
        self._cut(now_ns)
        self._fate.ended(list(self._life.running), Outcome.RUNNING)
        queued = [request for request in self._life.queued if request.visit != NO_VISIT]
        self._fate.ended(queued, Outcome.QUEUED)
        self._loop.close()  # breaks the reference cycle


def _ready_ns(arrival: tuple[int, Request]) -> int:
    return arrival[0]
