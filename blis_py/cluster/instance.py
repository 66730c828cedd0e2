"""One simulated engine instance: the scheduler core on SimPy's clock."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Generator, Sequence

from simpy import Environment, Event

from blis_py.cluster.recorder import InstanceLog
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler, Step
from blis_py.latency.base import LatencyModel

AFTER_ARRIVALS = 2
"""SimPy priority of the end of a step: what arrives at the same instant is seen by the next one."""


class Instance:
    """An endless loop: receive, schedule, let time pass, finish.

    Where the scheduler says that the next steps are alike, the loop sleeps through all of them. An
    arrival in the meantime shortens the sleep to the end of the step in progress, so the outcome
    is the same as that of single steps.
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
        self._single_step = single_step
        self._inbox: deque[tuple[int, Request]] = deque()
        """Requests on their way through the front end, with the time they are ready to be queued."""
        self._step: Step | None = None
        self._start_ns = 0
        self._ends: Sequence[int] = ()
        """End of each step of the current run, from its start."""
        self._steps = 0
        self._alarm = Event(env)
        env.process(self.run())

    def run(self) -> Generator[Event, None, None]:
        """The main loop."""
        while True:
            self._receive()
            step = self.scheduler.schedule(self.env.now)
            if step is None:
                yield self._until_work()
            else:
                yield self._execute(step)
                self._finish()

    # -- the router's side -----------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """A request dispatched to this instance now; it reaches the queue after the front end."""
        ready_ns = self.env.now + self.latency.frontend.before_enqueue_ns
        self.in_flight += 1
        self._inbox.append((ready_ns, request))
        if self._step is not None:
            self._cut(ready_ns)
        elif len(self._inbox) == 1:
            self._ring_at(ready_ns)

    def queue_depth(self, now_ns: int) -> int:
        """Requests waiting to be scheduled."""
        return len(self.scheduler.waiting) + sum(ready <= now_ns for ready, _ in self._inbox)

    @property
    def batch_size(self) -> int:
        """Requests in the running list."""
        return len(self.scheduler.running)

    # -- the loop's parts ------------------------------------------------------------------------

    def _receive(self) -> None:
        """Takes in what has arrived by now, and lets go what has waited too long."""
        now, inbox = self.env.now, self._inbox
        while inbox and inbox[0][0] <= now:
            ready_ns, request = inbox.popleft()
            self.log.enqueued(request, ready_ns)
            if self.scheduler.refuse(request) is not None:
                self.log.unservable(request, ready_ns)
                self.in_flight -= 1
            else:
                self.scheduler.add(request)
        for request in self.scheduler.expire(now):
            self.log.timed_out(request)
            self.in_flight -= 1

    def _execute(self, step: Step) -> Event:
        """Prices the step, and those like it that may follow; returns the event of their end."""
        self._step, self._start_ns = step, self.env.now
        steps = 1 if self._single_step else self.scheduler.repeats(step)
        if steps == 1:
            self._ends = (self.latency.step_ns(step.features),)
            self._steps = 1
        else:
            self._ends = self.latency.decode_run_ns(step.features, steps)
            self._steps = steps
            change = self.scheduler.next_change_ns(self._start_ns)
            if change is not None:
                self._shorten(change)
            if self._inbox:
                self._shorten(self._inbox[0][0])
        return self._ring_at(self._start_ns + int(self._ends[self._steps - 1]))

    def _finish(self) -> None:
        """The steps are over: tell the scheduler, note what came of it."""
        step, steps = self._step, self._steps
        assert step is not None
        self._step = None
        self.log.steps(step, self._start_ns, self._ends, steps)
        for request in self.scheduler.finish(step, steps):
            self.log.finished(request)
            self.in_flight -= 1

    def _shorten(self, time_ns: int) -> bool:
        """Ends the run with the step in progress at `time_ns`; returns whether that is earlier."""
        steps = bisect_left(self._ends, time_ns - self._start_ns, 0, self._steps) + 1
        if steps >= self._steps:
            return False
        self._steps = steps
        return True

    def _cut(self, time_ns: int) -> None:
        if self._steps > 1 and self._shorten(time_ns):
            self._ring_at(self._start_ns + int(self._ends[self._steps - 1]))

    def _until_work(self) -> Event:
        if self._inbox:
            return self._ring_at(self._inbox[0][0])
        self._alarm = Event(self.env)
        return self._alarm

    def _ring_at(self, time_ns: int) -> Event:
        """An event at `time_ns` that resumes the loop; whoever waits for an earlier alarm is moved to it."""
        alarm = Event(self.env)
        alarm._ok, alarm._value = True, None
        if self._alarm.callbacks:
            alarm.callbacks, self._alarm.callbacks = self._alarm.callbacks, []
        self._alarm = alarm
        self.env.schedule(alarm, AFTER_ARRIVALS, time_ns - self.env.now)
        return alarm

    def stop(self, now_ns: int) -> None:
        """The run ends at `now_ns`, maybe in the middle of steps: those that are over count."""
        if self._step is not None:
            self._steps = bisect_right(self._ends, now_ns - self._start_ns, 0, self._steps)
            if self._steps:
                self._finish()
        for ready_ns, request in self._inbox:
            if ready_ns <= now_ns:
                self.log.enqueued(request, ready_ns)
        for request in self.scheduler.running:
            self.scheduler.settle(request)
            self.log.still_running(request)
        for request in self.scheduler.waiting:
            self.log.still_queued(request)
