"""Simulated instances whose requests emit a token in every step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Protocol

from blis_py.cluster.instances.instance import IDLE_NS, Events, Instance
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.cluster.time.wakeups import WakeupQueue
from blis_py.core.request import Request
from blis_py.core.step import Step
from blis_py.core.step_scheduler import StepScheduler
from blis_py.latency.base import LatencyModel
from blis_py.latency.step_run import PricedRun, StepRun


class StepEvents(Events, Protocol):
    """Events of an autoregressive instance, for recorders and observers."""

    def steps(self, step: Step, start_ns: int, run: StepRun) -> None:
        """Identical steps have ended, or been launched; the scheduler is not updated yet."""
        ...

    def in_progress(self, step: Step) -> None:
        """A launched step that will not have ended when the run ends."""
        ...


class AutoregressiveInstance(Instance):
    """An instance that advances over identical steps at once.

    An arrival during such a run of steps cuts it at the end of the step in progress; the result equals that
    of single steps.

    Args:
        single_step: simulate every step by itself, for comparison.
        before_finish: called with a step and the number of identical steps that ended, before the scheduler
            is updated.
    """

    def __init__(
        self,
        wakeups: WakeupQueue,
        scheduler: StepScheduler,
        latency: LatencyModel,
        events: StepEvents,
        lookahead: Lookahead,
        single_step: bool = False,
        before_finish: Callable[[Step, int], None] | None = None,
    ) -> None:
        super().__init__(wakeups, scheduler, events, lookahead)
        self.scheduler = scheduler
        self.latency = latency
        self._events = events
        self._single_step = single_step
        self._before_finish = before_finish
        self._at_begin: Callable[[Step, int, int], None] | None = None
        self._step: Step | None = None
        self._run = StepRun(1, 0)
        """The current step and the identical steps after it."""
        self._reach = 4
        """Number of steps priced at once when an arrival may cut the run; adapts to the lengths reached."""
        self._compile_ns = 0
        """Time of compiling the kernels of prompts that go on; 0 once they are there."""

    def start_cold(self, compile_ns: int) -> None:
        """Compile the kernels of prompts that go on, of which KV is read back, at their first use."""
        self._compile_ns = compile_ns

    def watch_steps(self, call: Callable[[Step, int], None]) -> None:
        """Call with every step that has ended and the number of identical ones, before the scheduler is
        updated."""
        if self._before_finish is None:
            self._before_finish = call

    def watch_prompts(self, call: Callable[[Step, int, int], None]) -> None:
        """Call with every step that computes prompts, its begin and its end, when it is planned."""
        self._at_begin = call

    def _begin(self) -> int:
        now_ns, inbox, scheduler = self.now_ns, self._inbox, self.scheduler
        if (inbox and inbox[0][0] <= now_ns) or scheduler.first_deadline_ns <= now_ns:
            self._receive(now_ns)
        step = scheduler.schedule(now_ns)
        if step is None:
            return IDLE_NS
        self._step = step
        self._run = run = self._price(step, now_ns)
        if self._compile_ns and step.features.prefill_kv_tokens:
            self._run = run = self._compiled(run)
        if self._at_begin is not None and step.prefills:
            self._at_begin(step, now_ns, run.end_ns)
        return run.end_ns

    def _compiled(self, run: StepRun) -> StepRun:
        """The step that waits for its kernels; from now on they are there."""
        delay_ns, self._compile_ns = self._compile_ns, 0
        return StepRun(1, run.end_ns + delay_ns)

    def _price(self, step: Step, now_ns: int) -> StepRun:
        """Price the step and the identical steps that may follow."""
        features = step.features
        steps = 1 if step.prefills or self._single_step else self.scheduler.identical_decode_steps(step)
        if steps == 1:
            return StepRun(1, now_ns + self.latency.step_ns(features))
        change_ns = self.scheduler.next_change_ns(now_ns)
        if self._inbox and self._inbox[0][0] < change_ns:
            change_ns = self._inbox[0][0]
        if change_ns > self._lookahead.until_ns and steps > self._reach:
            steps = self._reach
            self._reach *= 4
        return self.latency.decode_run(features, steps, now_ns, change_ns)

    def _end(self) -> None:
        step, run = self._step, self._run
        assert step is not None
        self._step = None
        self._report(step, self.now_ns, run)
        self.now_ns = run.end_ns
        if self._before_finish is not None:
            self._before_finish(step, run.steps)
        finished = self.scheduler.finish(step, run.steps)
        if finished:
            self._finished(finished)

    def will_drop(self, request: Request) -> bool:
        return self._is_busy() and not self._answers(request)

    def _answers(self, request: Request) -> bool:
        """Whether the work in progress ends a request."""
        step = self._step
        return step is not None and self.scheduler.ends_with(request, step, self._run.steps)

    def _report(self, step: Step, start_ns: int, run: StepRun) -> None:
        """Report identical steps that ended or were launched."""
        if self._log is not None:
            self._log.steps(step, start_ns, run)
        else:
            self._events.steps(step, start_ns, run)

    def _is_busy(self) -> bool:
        return self._step is not None

    def _planned_by(self, now_ns: int) -> int:
        """Number of steps of the run planned before `now_ns`."""
        return self._run.until(now_ns).steps

    def _blocks_in_use(self, now_ns: int) -> int:
        return self.scheduler.blocks_in_use(1 if self._step is None else self._planned_by(now_ns))

    def _take_blocks(self, now_ns: int) -> None:
        if self._step is not None:
            self.scheduler.take_blocks(self._planned_by(now_ns))

    def _truncate(self, time_ns: int) -> None:
        """Cut the run after the step in progress at that time."""
        before = self._run
        self._run = before.until(time_ns)
        if self._run.steps < before.steps:
            self._reach = max(2 * self._run.steps, self._lookahead.min_reach)
            self._wakeups.set(self, self._run.end_ns)

    def _cut(self, now_ns: int) -> None:
        if self._step is not None:
            ends_ns = self._run.ends_ns()
            over_ns = ends_ns[: bisect_right(ends_ns, now_ns)]
            if len(over_ns):
                self._run = PricedRun(over_ns)
                self._end()
                self.scheduler.plan_alike()  # the step in progress
        for request in self.scheduler.running:
            self.scheduler.settle(request)
