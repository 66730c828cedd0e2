"""Asynchronous scheduling: a step is planned and launched while the previous one runs.

Twin of `run_overlapped` in the engine; the synchronous one is `autoregressive.AutoregressiveInstance`. An
event during step n is seen when n ends; the step planned then is n + 2, since n + 1 has been launched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from blis_py.cluster.instances.autoregressive import AutoregressiveInstance, StepEvents
from blis_py.cluster.instances.instance import IDLE_NS
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.cluster.time.wakeups import WakeupQueue
from blis_py.core.features import StepFeatures
from blis_py.core.request import Request
from blis_py.core.step import Step
from blis_py.core.step_scheduler import StepScheduler
from blis_py.latency.base import LatencyModel, overlapped
from blis_py.latency.decode_line import LineRun, line_ns
from blis_py.latency.launch_pipeline import launch_pipeline
from blis_py.latency.line_model import LineModel, decode_run, step_ns
from blis_py.latency.step_run import StepRun


class OverlappedInstance(AutoregressiveInstance):
    """An instance with one step in flight and one planned behind it.

    `now_ns` is the time at which the next step is planned: the end of the step before the one in flight.
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
        super().__init__(wakeups, scheduler, latency, events, lookahead, single_step, before_finish)
        self._behind = overlapped(latency)
        """Step times behind another step: host work that overlaps with it is hidden."""
        self._line = self._behind if isinstance(self._behind, LineModel) else None
        """The same model if its functions can be called without a lookup."""
        self._filling = latency if isinstance(latency, LineModel) else None
        """The model of a step on an idle GPU, likewise."""
        self._pipeline = launch_pipeline(self._behind)
        """Ends of steps with prompts, where launching is priced apart."""
        self._flight: Step | None = None
        """The launched step whose outcome is not known."""
        self._flight_end_ns = 0
        self._last_planned_ns = 0
        """Launch time of the run's last step, at which the next one is planned."""

    def _begin(self) -> int:
        """Plan the work behind the step in flight, whose end is the next event."""
        now_ns, inbox, scheduler = self.now_ns, self._inbox, self.scheduler
        if (inbox and inbox[0][0] <= now_ns) or scheduler.first_deadline_ns <= now_ns:
            self._receive(now_ns)
        self._step = step = scheduler.schedule(now_ns)
        if step is None:
            return IDLE_NS if self._flight is None else self._flight_end_ns
        if self._flight is None:
            self._run = StepRun(1, self._filling_end_ns(step, now_ns))
            if self._compile_ns and _goes_on(step.features):
                self._run = self._compiled(self._run)
            if self._at_begin is not None and step.prefills:
                self._at_begin(step, now_ns, self._run.end_ns)
            return now_ns  # launched at once, and the next one planned
        self._price_behind(step, self._flight_end_ns, now_ns)
        if self._compile_ns and _goes_on(step.features):
            self._run = self._compiled(self._run)
        if self._at_begin is not None and step.prefills:
            self._at_begin(step, self._flight_end_ns, self._run.end_ns)
        return self._last_planned_ns

    def _compiled(self, run: StepRun) -> StepRun:
        """The host compiles while it launches the step behind, and reads this one's outcome afterwards."""
        if self._pipeline is not None:
            self._pipeline.blocked(self._compile_ns)
        return super()._compiled(run)

    def _filling_end_ns(self, step: Step, now_ns: int) -> int:
        """End of a step launched on an idle GPU, which is seen once the one behind it is launched, too."""
        line = self._filling
        duration_ns = self.latency.step_ns(step.features) if line is None else step_ns(line, step.features)
        end_ns = now_ns + duration_ns
        if self._pipeline is None:
            return end_ns
        scheduler = self.scheduler
        goes_on = any(not scheduler.ends_with(request, step, 1) for request, _ in step.prefills)
        return self._pipeline.filled_ns(step.features, now_ns, end_ns, goes_on)

    def _price_behind(self, step: Step, start_ns: int, now_ns: int) -> None:
        """Price the step and the identical steps that may follow."""
        features, line = step.features, self._line
        steps = 1 if step.prefills or self._single_step else self.scheduler.identical_decode_steps(step)
        if steps > 1:
            change_ns = self.scheduler.next_change_ns(now_ns)
            if self._inbox and self._inbox[0][0] < change_ns:
                change_ns = self._inbox[0][0]
            if change_ns > start_ns:
                if change_ns > self._lookahead.until_ns and steps > self._reach:
                    steps = self._reach
                    self._reach *= 4
                if line is not None:
                    run = decode_run(line, features, steps, start_ns, change_ns)
                else:
                    run = self._behind.decode_run(features, steps, start_ns, change_ns)
                if run.steps == steps:
                    self._run = run
                    self._last_planned_ns = run.end_ns - self._later_ns(features, run, steps - 1)
                else:  # the step that sees the change is planned when this run ends, behind one more of these
                    self._last_planned_ns = run.end_ns
                    self._run = run.then(run.end_ns + self._later_ns(features, run, run.steps))
                return
        self._last_planned_ns = start_ns
        if self._pipeline is not None and features.prefill_seqs:
            self._run = StepRun(1, self._pipeline.prompt_end_ns(features, start_ns))
        elif line is not None:
            self._run = StepRun(1, start_ns + step_ns(line, features))
        else:
            self._run = StepRun(1, start_ns + self._behind.step_ns(features))

    def _later_ns(self, features: StepFeatures, run: StepRun, steps: int) -> int:
        """Duration of the step `steps` steps after the first of a run."""
        if isinstance(run, LineRun):
            return line_ns(run.line, run.kv_tokens + steps * run.growth)
        return self._behind.step_ns(features.after(steps))

    def _end(self) -> None:
        """Launch the planned steps; the step before the last of them has ended."""
        flight, step, run = self._flight, self._step, self._run
        end_ns = self.now_ns if flight is None else self._flight_end_ns
        if step is not None:
            self._note(step, end_ns, run)
            self.scheduler.advance(step, run.steps)
        if flight is not None:
            self.now_ns = end_ns
            if self._before_finish is not None:
                self._before_finish(flight, 1)
            finished = self.scheduler.resolve(flight)
            if finished:
                self._finished(finished)
        if step is not None and run.steps > 1:
            self.now_ns = self._last_planned_ns
            self.scheduler.resolve(step, run.steps - 1)
        if (
            self._pipeline is not None
            and flight is not None
            and step is not None
            and not step.features.prefill_seqs
        ):
            self._pipeline.decoded(step, run.steps, self.now_ns, run.end_ns)
        self._flight, self._flight_end_ns, self._step = step, run.end_ns, None

    def _note(self, step: Step, start_ns: int, run: StepRun) -> None:
        """Record the steps, except for a last one that does not end before the run does."""
        if run.end_ns > self._lookahead.end_ns:
            self._events.in_progress(step)
            if run.steps == 1:
                return
            run = run.first(run.steps - 1)
        self._report(step, start_ns, run)

    def _answers(self, request: Request) -> bool:
        """With the step in flight, or one that is launched and has ended before the next one is planned."""
        if self._flight is not None and request in self._flight.ending:
            return True
        step, steps = self._step, self._run.steps - 1
        return step is not None and steps > 0 and self.scheduler.ends_with(request, step, steps)

    def _is_busy(self) -> bool:
        return self._step is not None or self._flight is not None

    def _planned_by(self, now_ns: int) -> int:
        launched = 0 if self._flight_end_ns >= now_ns else self._run.until(now_ns).steps
        return min(launched + 1, self._run.steps)

    def _truncate(self, time_ns: int) -> None:
        """Cut the run at the first step end at which the arrival is seen."""
        if self._step is None or self._run.steps == 1:
            return
        before = self._run
        if isinstance(before, LineRun) and self._flight_end_ns < time_ns:
            self._truncate_line(before, time_ns)
            return
        steps = self._planned_by(time_ns)
        if steps < before.steps:
            self._run = before.first(steps)
            self._reach = max(2 * steps, self._lookahead.min_reach)
            self._last_planned_ns = self._flight_end_ns if steps == 1 else before.first(steps - 1).end_ns
            self._wakeups.set(self, self._last_planned_ns)

    def _truncate_line(self, before: LineRun, time_ns: int) -> None:
        """The same, of a run along a line past its first step's launch: priced once, not thrice."""
        launched = before.until(time_ns)
        steps = launched.steps + 1
        if steps < before.steps:
            line, kv_tokens, growth = before.line, before.kv_tokens, before.growth
            end_ns = launched.end_ns + line_ns(line, kv_tokens + launched.steps * growth)
            self._run = LineRun(line, kv_tokens, growth, before.start_ns, steps, end_ns)
            self._reach = max(2 * steps, self._lookahead.min_reach)
            self._last_planned_ns = launched.end_ns
            self._wakeups.set(self, launched.end_ns)

    def _cut(self, now_ns: int) -> None:
        if self._flight is not None and self._step is not None and self._flight_end_ns <= now_ns:
            over = bisect_right(self._run.ends_ns(), now_ns)
            self._last_planned_ns = self._run.first(over).end_ns if over else self._flight_end_ns
            self._run = self._run.first(over + 1)
            self._end()
            self.scheduler.plan_alike()  # behind the step in flight
        if self._flight is not None and self._flight_end_ns > now_ns:
            self.scheduler.leave_out_last()
        for request in [*self.scheduler.running, *self.scheduler.queued]:
            self.scheduler.settle(request)
            request.forget_since(self.scheduler.resolved)


def _goes_on(f: StepFeatures) -> bool:
    """Whether a prompt goes on in this step, or in the one that is launched before its outcome is read."""
    unfinished = f.emitted_rows < f.prefill_seqs + f.decode_seqs
    return f.prefill_seqs > 0 and (f.prefill_kv_tokens > 0 or unfinished)
