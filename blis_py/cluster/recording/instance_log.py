"""The log of one instance: its steps, and the outcome of its visits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from blis_py.cluster.recording.recorder import Recorder
from blis_py.core.features import FEATURE_NAMES, StepFeatures, further_names
from blis_py.core.request import FinishReason, Request
from blis_py.core.step import Step
from blis_py.latency.step_run import StepRun
from blis_py.metrics.record import InstanceRecord, Outcome
from blis_py.metrics.step_ends import StepEnds
from blis_py.metrics.steps_table import StepsTable
from blis_py.metrics.visits import Onward, Role

RUN_COLUMNS = ("start_ns", "end_ns", "steps", "waiting", "running", "kv_blocks", "preemptions")
"""Columns of the steps table; the features follow."""

_LENGTH: Final = FinishReason.LENGTH
_COMPLETED: Final = Outcome.COMPLETED


class InstanceLog:
    """Log of one instance and the outcome of the requests dispatched to it. Its methods are `StepEvents`.

    Args:
        scheduler: the instance's: a `Scheduler`, or that of its kind of requests.
        role: what the instance computes of a request.
    """

    def __init__(
        self,
        recorder: Recorder,
        scheduler: Any,
        record_steps: bool,
        features: Sequence[str] = FEATURE_NAMES,
        role: Role = Role.BOTH,
    ) -> None:
        recorder.logs.append(self)
        self._to = recorder
        self.role = role
        self._views = recorder.views
        self._front_end, self._notes_late = recorder.frontend, recorder.frontend.vary
        self._features = (*features, *further_names())
        self._scheduler = scheduler
        self._ends = StepEnds()
        self._idle_ns = self._pause_ns = 0
        """Idle time before steps, and the latest pause, behind so many steps."""
        self._pause_step = 0
        self._in_progress = StepFeatures()
        """Features of a step that had not ended when the run ended."""
        self._runs = StepsTable((*RUN_COLUMNS, *self._features), recorder.spool) if record_steps else None
        self._preempted = 0
        """Preemptions in all rows of the table so far."""

    def steps(self, step: Step, start_ns: int, run: StepRun) -> None:
        features = step.features
        self._note_run(features, start_ns, run)
        if self._notes_late and features.prefill_seqs:
            for request, _ in step.prefills:
                # Of a prompt's steps, the last one brings the token.
                if request.first_tick < 0 and not request.continues:
                    late_ns = self._front_end.late_ns(request.prompt_tokens, features.emitted_rows)
                    self._views.late_ns[request.visit] = late_ns

    def _note_run(self, features: StepFeatures, start_ns: int, run: StepRun) -> None:
        self._ends.append(run)
        if self._runs is not None:
            scheduler = self._scheduler
            state = (scheduler.queue_depth, len(scheduler.running), scheduler.blocks_in_use(run.steps))
            before, self._preempted = self._preempted, scheduler.counters.preemptions
            what = features.row(self._features)
            self._runs.append([start_ns, run.end_ns, run.steps, *state, self._preempted - before, *what])

    def in_progress(self, step: Step) -> None:
        """Book the work of a step that does not end before the run does."""
        self._in_progress = step.features

    def idle(self, duration_ns: int) -> None:
        if self._pause_step < self._ends.steps:
            self._end_pause()
        self._pause_ns += duration_ns

    def _end_pause(self) -> None:
        """Count the latest pause: a step has followed."""
        self._idle_ns += self._pause_ns
        self._pause_ns, self._pause_step = 0, self._ends.steps

    def unservable(self, request: Request, now_ns: int) -> None:
        visit = request.visit
        self._to.outcome[visit], self._to.finish_ns[visit] = Outcome.UNSERVABLE, now_ns
        self._to.failed(request, now_ns)

    def timed_out(self, requests: list[Request]) -> None:
        to = self._to
        for request in requests:
            visit = request.visit
            to.finish_ns[visit] = seen_ns = max(request.deadline_ns, int(to.ready_ns[visit]))
            to.failed(request, seen_ns)
        self.ended(requests, Outcome.TIMED_OUT)

    def finished(self, requests: list[Request], end_ns: int) -> None:
        if any(request.finish_reason is _LENGTH for request in requests):
            capped = [request for request in requests if request.finish_reason is _LENGTH]
            self.ended(capped, Outcome.LENGTH_CAPPED)
            self.ended([request for request in requests if request.finish_reason is not _LENGTH], _COMPLETED)
        else:
            self.ended(requests, _COMPLETED)
        if self._to.on_end is not None:
            front_end = self._to.frontend
            for request in requests:
                delay_ns = front_end.token_ns(request.generated) + front_end.at_end_ns
                delay_ns += self._to.late_by(request.visit)
                self._to.on_end(request, end_ns + delay_ns)

    def goes_on(self, requests: list[Request], how: Onward, now_ns: int) -> None:
        """Close the visits of requests that leave now and continue elsewhere.

        They are settled; what they emitted here has been delivered. `Recorder.revisit` opens the next
        visit.
        """
        for request in requests:
            self._views.finish_ns[request.visit] = now_ns
        self.ended(requests, how)

    def ended(self, requests: list[Request], outcome: Outcome | Onward) -> None:
        visit: Any  # one object; native code would create a new one for every column
        views = self._views
        for request in requests:
            visit = request.visit
            views.outcome[visit] = outcome
            views.scheduled_ns[visit] = request.scheduled_ns
            views.emitted_tokens[visit] = request.generated - request.carried
            views.first_step[visit] = request.first_tick
            views.last_step[visit] = request.last_tick
            if request.cached_tokens > 0:
                views.cached_tokens[visit] = request.cached_tokens
            if request.preemptions:
                views.preemptions[visit] = request.preemptions
            if request.gaps:
                self._to.breaks += [(visit, before, after) for before, after in request.gaps]
            if request.bursts:
                self._to.others += [(visit, step, tokens) for step, tokens in request.bursts]

    def record(self) -> InstanceRecord:
        """The finished record."""
        counters, pool = self._scheduler.counters, self._scheduler.kv.pool
        return InstanceRecord(
            num_kv_blocks=self._scheduler.config.num_kv_blocks,
            step_ends=self._ends,
            busy_ns=self._busy_ns(),
            peak_kv_blocks=max(pool.total - pool.least_free, self._scheduler.blocks_in_use()),
            kv_block_steps=pool.in_use_ticks,
            prefill_tokens=counters.prefill_tokens - self._in_progress.prefill_tokens,
            decode_tokens=self._scheduler.decode_tokens - self._in_progress.decode_seqs,
            prefix_queried_tokens=counters.prefix_queried_tokens,
            prefix_hit_tokens=counters.prefix_hit_tokens,
            preemptions=counters.preemptions,
            priority_inversions=counters.priority_inversions,
            head_of_line_events=counters.head_of_line_events,
            discarded_tokens=counters.discarded_tokens,
            runs=self._runs,
        )

    def _busy_ns(self) -> int:
        if self._pause_step < self._ends.steps:
            self._end_pause()
        return self._ends.last_ns - self._idle_ns if self._ends.steps else 0
