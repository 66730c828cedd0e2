"""One simulated engine instance: the scheduler core on SimPy's clock."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Generator, Sequence

from simpy import Environment, Event
from simpy.events import EventPriority

from blis_py.cluster.recorder import InstanceLog
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler, Step
from blis_py.latency.base import LatencyModel
from blis_py.metrics.record import Outcome

AFTER_ARRIVALS = EventPriority(2)
"""SimPy priority of the end of a step: what arrives at the same instant is seen by the next one."""


_MARGIN = 4
"""Steps to price beyond the estimate; too few cost another round."""


class Alarm(Event):
    """Wakes a sleeping loop. Unlike a timeout's, its sleeper can be moved to another alarm."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.callbacks = []
        self._ok = True
        self._value = None


class Instance:
    """An endless loop: receive, schedule, let time pass, finish.

    Two shortcuts leave the outcome as it is. Where the scheduler says that the next steps are
    alike, the loop passes them in one go; an arrival in the meantime shortens it to the end of the
    step in progress. And the loop keeps its own time and waits for the clock of the simulation
    only where something might still come in between: beyond `undisturbed_until_ns`.
    """

    def __init__(
        self,
        env: Environment,
        scheduler: Scheduler,
        latency: LatencyModel,
        log: InstanceLog,
        single_step: bool = False,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.latency = latency
        self.log = log
        self.in_flight = 0
        """Requests dispatched here that have not ended."""
        self.undisturbed_until_ns = -1
        """Nobody looks at this instance, and nothing not submitted yet reaches it, before or at this time."""
        self.now_ns = 0
        """The loop's time: the latest step boundary it has dealt with."""
        self._single_step = single_step
        self._front_end_ns = latency.frontend.before_enqueue_ns
        self._inbox: deque[tuple[int, Request]] = deque()
        """Requests on their way through the front end, with the time they are ready to be queued."""
        self._step: Step | None = None
        self._ends: Sequence[int] = ()
        """End of each step of the current run, from its start."""
        self._steps = 0
        self._end_ns = 0
        self._reach = 4
        """Steps to price at once where an arrival may cut the run; adapts to how far runs get."""
        self._pace_ns = 1_000_000
        """Duration of a recent decode step."""
        self._alarm = Alarm(env)
        env.process(self.run())

    def run(self) -> Generator[Event, None, None]:
        """The main loop."""
        scheduler, inbox = self.scheduler, self._inbox
        while True:
            now_ns = self.now_ns
            if (inbox and inbox[0][0] <= now_ns) or scheduler.first_deadline_ns <= now_ns:
                self._receive(now_ns)
            step = scheduler.schedule(now_ns)
            if step is not None:
                end_ns = self._execute(step)
                if end_ns > self.undisturbed_until_ns:
                    yield self._ring_at(end_ns)
                self._finish()
            elif inbox and inbox[0][0] <= self.undisturbed_until_ns:
                self.now_ns = inbox[0][0]
            else:
                yield self._until_work()
                self.now_ns = int(self.env.now)

    # -- the router's side -----------------------------------------------------------------------

    def submit(self, request: Request, dispatch_ns: int) -> None:
        """A request dispatched to this instance; it reaches the queue after the front end.

        Dispatch times never go back.
        """
        ready_ns = dispatch_ns + self._front_end_ns
        self.in_flight += 1
        self._inbox.append((ready_ns, request))
        if len(self._inbox) == 1:
            if self._step is None:
                self._schedule(self._alarm, ready_ns)  # the loop is idle; its alarm had no time yet
            elif self._steps > 1:
                self._cut(ready_ns)

    def queue_depth(self, now_ns: int) -> int:
        """Requests waiting to be scheduled."""
        return len(self.scheduler.waiting) + sum(ready <= now_ns for ready, _ in self._inbox)

    @property
    def batch_size(self) -> int:
        """Requests in the running list."""
        return len(self.scheduler.running)

    # -- the loop's parts ------------------------------------------------------------------------

    def _receive(self, now_ns: int) -> None:
        """Takes in what has arrived by now, and lets go who has waited too long."""
        inbox, log = self._inbox, self.log
        while inbox and inbox[0][0] <= now_ns:
            ready_ns, request = inbox.popleft()
            log.enqueued(request, ready_ns)
            if self.scheduler.add(request) is not None:
                log.unservable(request, ready_ns)
                self.in_flight -= 1
        if self.scheduler.first_deadline_ns <= now_ns:
            for request in self.scheduler.expire(now_ns):
                log.timed_out(request)
                self.in_flight -= 1

    def _execute(self, step: Step) -> int:
        """Prices the step, and those like it that may follow; returns when they end."""
        self._step = step
        steps = 1 if step.prefills or self._single_step else self.scheduler.repeats(step)
        if steps == 1:
            duration_ns = self.latency.step_ns(step.features)
            self._ends, self._steps = (duration_ns,), 1
            self._end_ns = end_ns = self.now_ns + duration_ns
            return end_ns
        now_ns = self.now_ns
        change_ns = self.scheduler.next_change_ns(now_ns)
        if self._inbox and self._inbox[0][0] < change_ns:
            change_ns = self._inbox[0][0]
        steps = min(steps, self._worth_pricing(change_ns))
        self._ends, self._steps = self.latency.decode_run_ns(step.features, steps), steps
        self._end_ns = now_ns + int(self._ends[-1])
        self._pace_ns = (self._end_ns - now_ns) // steps
        if not self._shorten(change_ns):
            self._reach = 4 * steps
        return self._end_ns

    def _worth_pricing(self, change_ns: int) -> int:
        """About how many steps a run will get to: up to the next change, or until an arrival cuts it."""
        if change_ns <= self.undisturbed_until_ns:
            return (change_ns - self.now_ns) // self._pace_ns + _MARGIN
        return max(self.undisturbed_until_ns - self.now_ns, 0) // self._pace_ns + self._reach

    def _finish(self) -> None:
        """The steps are over: tell the scheduler, note what came of it."""
        step, steps = self._step, self._steps
        assert step is not None
        self._step = None
        self.log.steps(step, self.now_ns, self._ends, steps)
        self.now_ns = self._end_ns
        for request in self.scheduler.finish(step, steps):
            self.log.finished(request)
            self.in_flight -= 1

    def _shorten(self, time_ns: int) -> bool:
        """Ends the run with the step in progress at `time_ns`; returns whether that is earlier."""
        steps = bisect_left(self._ends, time_ns - self.now_ns, 0, self._steps) + 1
        if steps >= self._steps:
            return False
        self._steps = steps
        self._end_ns = self.now_ns + int(self._ends[steps - 1])
        return True

    def _cut(self, time_ns: int) -> None:
        """Shortens a run that the loop is asleep in."""
        if self._shorten(time_ns):
            self._reach = 2 * self._steps
            sleeper = self._alarm.callbacks
            self._alarm.callbacks = []
            self._ring_at(self._end_ns).callbacks = sleeper

    def _until_work(self) -> Event:
        if self._inbox:
            return self._ring_at(self._inbox[0][0])
        self._alarm = Alarm(self.env)
        return self._alarm

    def _ring_at(self, time_ns: int) -> Alarm:
        """The event the loop sleeps on. An arrival may replace it by an earlier one."""
        self._alarm = Alarm(self.env)
        self._schedule(self._alarm, time_ns)
        return self._alarm

    def _schedule(self, alarm: Alarm, time_ns: int) -> None:
        self.env.schedule(alarm, AFTER_ARRIVALS, time_ns - int(self.env.now))

    def stop(self, now_ns: int) -> None:
        """The run ends at `now_ns`, maybe in the middle of steps: those that are over count."""
        if self._step is not None:
            self._steps = bisect_right(self._ends, now_ns - self.now_ns, 0, self._steps)
            if self._steps:
                self._end_ns = self.now_ns + int(self._ends[self._steps - 1])
                self._finish()
                self.scheduler.schedule(self.now_ns)  # the step in progress
        for ready_ns, request in self._inbox:
            if ready_ns <= now_ns:
                self.log.enqueued(request, ready_ns)
        for request in self.scheduler.running:
            self.scheduler.settle(request)
            self.log.note(request, Outcome.RUNNING)
        for request in self.scheduler.waiting:
            self.log.note(request, Outcome.QUEUED)
