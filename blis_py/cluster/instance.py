"""One simulated engine instance: the scheduler core on SimPy's clock."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Sequence

from simpy import Environment, Event
from simpy.events import EventPriority

from blis_py.cluster.alarm import Alarm
from blis_py.cluster.recorder import InstanceLog
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step
from blis_py.latency.base import LatencyModel
from blis_py.latency.step_run import PricedRun, StepRun
from blis_py.metrics.record import Outcome

AFTER_ARRIVALS = EventPriority(2)
"""SimPy priority of the end of a step: what arrives at the same instant is seen by the next one."""


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
        self._run = StepRun(1, 0)
        """The step, and those like it that follow."""
        self._reach = 4
        """Steps to price at once where an arrival may cut the run; adapts to how far runs get."""
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
                self._resume(inbox[0][0])
            else:
                yield self._until_work()
                self._resume(int(self.env.now))

    # -- the router's side -----------------------------------------------------------------------

    def submit(self, request: Request, dispatch_ns: int) -> None:
        """A request dispatched to this instance; it reaches the queue after the front end.

        Dispatch times never go back.
        """
        self.submit_all([(dispatch_ns + self._front_end_ns, request)])

    def submit_all(self, arrivals: Sequence[tuple[int, Request]]) -> None:
        """Requests dispatched to this instance, each with the time it reaches the queue, in this order."""
        asleep = not self._inbox
        self._inbox.extend(arrivals)
        self.in_flight += len(arrivals)
        if asleep and arrivals:
            self._wake(arrivals[0][0])

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
        inbox, scheduler = self._inbox, self.scheduler
        while inbox and inbox[0][0] <= now_ns:
            ready_ns, request = inbox.popleft()
            if scheduler.add(request) is not None:
                self.log.unservable(request, ready_ns)
                self.in_flight -= 1
        if scheduler.first_deadline_ns <= now_ns:
            expired = scheduler.expire(now_ns)
            self.log.timed_out(expired)
            self.in_flight -= len(expired)

    def _execute(self, step: Step) -> int:
        """Prices the step, and those like it that may follow; returns when they end."""
        self._step = step
        now_ns, features = self.now_ns, step.features
        steps = 1 if step.prefills or self._single_step else self.scheduler.repeats(step)
        if steps == 1:
            end_ns = now_ns + self.latency.step_ns(features)
            self._run = StepRun(1, end_ns)
            return end_ns
        change_ns = self.scheduler.next_change_ns(now_ns)
        if self._inbox and self._inbox[0][0] < change_ns:
            change_ns = self._inbox[0][0]
        if change_ns > self.undisturbed_until_ns and steps > self._reach:
            steps = self._reach
            self._reach *= 4
        self._run = self.latency.decode_run(features, steps, now_ns, change_ns)
        return self._run.end_ns

    def _finish(self) -> None:
        """The steps are over: tell the scheduler, note what came of it."""
        step, run = self._step, self._run
        assert step is not None
        self._step = None
        self.log.steps(step, self.now_ns, run)
        self.now_ns = run.end_ns
        finished = self.scheduler.finish(step, run.steps)
        if finished:
            self.log.finished(finished)
            self.in_flight -= len(finished)

    def _shorten(self, time_ns: int) -> bool:
        """Ends the run with the step in progress at `time_ns`; returns whether that is earlier."""
        before = self._run
        self._run = before.until(time_ns)
        return self._run.steps < before.steps

    def _resume(self, time_ns: int) -> None:
        """There was nothing to do until now."""
        self.log.idle(time_ns - self.now_ns)
        self.now_ns = time_ns

    def _wake(self, time_ns: int) -> None:
        """Somebody comes at `time_ns`, and until now nobody was expected."""
        if self._step is None:
            self._schedule(self._alarm, time_ns)  # the loop is idle; its alarm had no time yet
        elif self._shorten(time_ns):
            self._reach = 2 * self._run.steps
            sleeper = self._alarm.callbacks
            self._alarm.callbacks = []
            self._ring_at(self._run.end_ns).callbacks = sleeper

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
            ends_ns = self._run.ends_ns()
            over = ends_ns[: bisect_right(ends_ns, now_ns)]
            if len(over):
                self._run = PricedRun(over)
                self._finish()
                self.scheduler.schedule(self.now_ns)  # the step in progress
        for request in self.scheduler.running:
            self.scheduler.settle(request)
        self.log.ended(list(self.scheduler.running), Outcome.RUNNING)
        self.log.ended(list(self.scheduler.waiting), Outcome.QUEUED)
