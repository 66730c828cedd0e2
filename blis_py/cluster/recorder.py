"""Writes down what happens in a run, as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from blis_py.core.features import FEATURE_NAMES, StepFeatures
from blis_py.core.request import FinishReason, Request
from blis_py.core.step import Step
from blis_py.latency.base import FrontendDelays
from blis_py.latency.step_run import StepRun
from blis_py.metrics.record import InstanceRecord, Outcome, RunRecord
from blis_py.metrics.sessions import unsent_turns
from blis_py.metrics.step_ends import StepEnds
from blis_py.metrics.steps_table import Spool, StepsTable
from blis_py.requests.table import Ints, Labels, RequestTable

if TYPE_CHECKING:
    from blis_py.metrics.decisions import Decisions

RUN_COLUMNS = ("start_ns", "end_ns", "steps", "waiting", "running", "kv_blocks", "preemptions")
"""Of the steps table; the features follow."""

_LENGTH: Final = FinishReason.LENGTH
_COMPLETED: Final = Outcome.COMPLETED


class Recorder:
    """The request columns of one run; -1 where something has not happened.

    Args:
        table: the requests.
        frontend: delays of the instances' front end.
        on_the_way_ns: from a request's arrival to its dispatch.

    Attributes:
        on_end: called with a request that was admitted and has ended, for whatever reason, and when its
            client sees that.
    """

    def __init__(self, table: RequestTable, frontend: FrontendDelays, on_the_way_ns: int = 0) -> None:
        self.table = table
        self.frontend = frontend
        self.logs: list[InstanceLog] = []
        """One for each instance."""
        self.spool = Spool()
        """For what grows with the steps."""
        self._sent: list[int] | None = None
        """Rows in order of arrival, where that was not known beforehand."""
        self.on_end: Callable[[Request, int], None] | None = None
        self._on_the_way_ns = on_the_way_ns
        rows = len(table)
        self.ready_ns: Ints = table.arrival_ns + (on_the_way_ns + frontend.before_enqueue_ns)
        """When each request reaches the queue of its instance, if the run lasts so long."""
        self.outcome = np.full(rows, Outcome.QUEUED, dtype=np.int8)
        self.instance = np.full(rows, -1, dtype=np.int32)
        self._instance = self.instance.data
        self.late_ns = np.zeros(rows if frontend.behind_seq_ns else 0, dtype=np.int64)
        """Of each request, how late the client sees its tokens for those of others; empty if nobody is."""
        self.scheduled_ns, self.finish_ns = _unset(rows), _unset(rows)
        self.first_step, self.last_step = _unset(rows), _unset(rows)
        self.emitted_tokens, self.cached_tokens, self.preemptions = (
            np.zeros(rows, dtype=np.int64) for _ in range(3)
        )
        self.breaks: list[tuple[int, int, int]] = []
        self.decisions: Decisions | None = None
        self._rejections: dict[int, str] = {}
        """Row -> why it was not let in."""
        self._evictions: dict[int, str] = {}
        """Row -> why it was told to leave, which it may have done by itself meanwhile."""
        self._gave_up = 0
        self._queued_ns: Ints | None = None
        """Since when each request has waited at the gateway; -1 = it does not."""
        self._gateway_ns: Ints | None = None
        """How long it did."""

    def listen(self, on_end: Callable[[Request, int], None]) -> None:
        """The table's arrivals are not known beforehand: every request that is sent is to be told."""
        self._sent = []
        self.tell(on_end)

    def tell(self, on_end: Callable[[Request, int], None]) -> None:
        """One more who wants to know of the end of every request that was admitted."""
        before = self.on_end
        if before is None:
            self.on_end = on_end
            return

        def both(request: Request, seen_ns: int) -> None:
            before(request, seen_ns)
            on_end(request, seen_ns)

        self.on_end = both

    def sent(self, requests: Sequence[Request]) -> None:
        """These arrive now."""
        assert self._sent is not None
        for request in requests:
            row, arrival_ns = request.row, request.arrival_ns
            self._sent.append(row)
            self.table.arrival_ns[row], self.table.deadline_ns[row] = arrival_ns, request.deadline_ns
            self.ready_ns[row] = arrival_ns + self._on_the_way_ns + self.frontend.before_enqueue_ns

    def dispatched(self, request: Request, instance: int) -> None:
        """Where it goes."""
        self._instance[request.row] = instance

    def held(self, request: Request, duration_ns: int) -> None:
        """It has waited at dispatch, where no instance was ready."""
        self.ready_ns[request.row] += duration_ns

    def rejected(self, request: Request, now_ns: int, why: str) -> None:
        """It is not let in, or has nowhere to go."""
        row = request.row
        self.outcome[row], self.finish_ns[row] = Outcome.REJECTED, now_ns
        self._rejections[row] = why

    @property
    def num_rejected(self) -> int:
        """Requests that ended without having been dispatched, so far."""
        return len(self._rejections) + self._gave_up

    def _reasons(self) -> Labels | None:
        """Why requests were not let in, or evicted; `None` where nobody was."""
        evicted = {row: why for row, why in self._evictions.items() if self.outcome[row] == Outcome.EVICTED}
        reasons = self._rejections | evicted
        if not reasons:
            return None
        names = ("", *sorted(set(reasons.values())))
        code_of = {name: code for code, name in enumerate(names)}
        codes = np.zeros(len(self.table), dtype=np.int32)
        codes[list(reasons)] = [code_of[why] for why in reasons.values()]
        return Labels(codes, names)

    # -- the gateway queue ---------------------------------------------------------------------------

    def keep_waits(self) -> None:
        """There is a gateway queue."""
        self._queued_ns, self._gateway_ns = _unset(len(self.table)), _unset(len(self.table))

    def queued(self, request: Request, now_ns: int) -> None:
        """It waits at the gateway."""
        assert self._queued_ns is not None
        self._queued_ns[request.row] = now_ns

    def left_gateway(self, request: Request, now_ns: int) -> None:
        """It does not wait there any more."""
        assert self._queued_ns is not None
        assert self._gateway_ns is not None
        row = request.row
        waited_ns = now_ns - int(self._queued_ns[row])
        self._queued_ns[row], self._gateway_ns[row] = -1, waited_ns
        self.ready_ns[row] += waited_ns

    def gave_up(self, request: Request, now_ns: int) -> None:
        """Its client did, before it was dispatched."""
        self.outcome[request.row], self.finish_ns[request.row] = Outcome.TIMED_OUT, now_ns
        self._gave_up += 1
        if self.on_end is not None:
            self.on_end(request, now_ns)

    def evicted(self, request: Request, why: str) -> None:
        """It has been told to leave its instance, and will do so unless it ends before."""
        self._evictions[request.row] = why

    def _note_evictions(self) -> None:
        """Whoever was told to leave, and did as if it gave up, was evicted."""
        for row in self._evictions:
            if self.outcome[row] == Outcome.TIMED_OUT:
                self.outcome[row] = Outcome.EVICTED

    def _waits(self, end_ns: int) -> Ints | None:
        """How long requests waited at the gateway, or have."""
        if self._queued_ns is None or self._gateway_ns is None:
            return None
        return np.where(self._queued_ns >= 0, end_ns - self._queued_ns, self._gateway_ns)

    def record(self, end_ns: int) -> RunRecord:
        """The finished record."""
        record = self._record(end_ns)
        if self._sent is None:
            return record
        sent = np.array(self._sent, dtype=np.int64)
        record.unsent_turns = unsent_turns(self.table, self.outcome, sent)
        return record.take(sent)

    def _record(self, end_ns: int) -> RunRecord:
        instances = [log.record() for log in self.logs]
        self.logs.clear()  # with the instances' KV pools
        self._forget_unseen_tokens(instances)
        self._note_evictions()
        first_token_ns, last_token_ns = self._token_times(instances)
        done = self.outcome <= Outcome.LENGTH_CAPPED
        self.finish_ns[done] = last_token_ns[done] + self.frontend.at_end_ns
        return RunRecord(
            table=self.table,
            outcome=self.outcome,
            instance=self.instance,
            enqueue_ns=np.where((self.instance >= 0) & (self.ready_ns <= end_ns), self.ready_ns, -1),
            scheduled_ns=self.scheduled_ns,
            first_token_ns=first_token_ns,
            last_token_ns=last_token_ns,
            finish_ns=self.finish_ns,
            emitted_tokens=self.emitted_tokens,
            cached_tokens=self.cached_tokens,
            preemptions=self.preemptions,
            first_step=self.first_step,
            last_step=self.last_step,
            breaks=np.array(sorted(self.breaks), dtype=np.int64).reshape(-1, 3),
            instances=instances,
            frontend=self.frontend,
            end_ns=end_ns,
            decisions=self.decisions,
            rejection=self._reasons(),
            gateway_ns=self._waits(end_ns),
        )

    def _forget_unseen_tokens(self, instances: Sequence[InstanceRecord]) -> None:
        """Takes away the tokens that came after their client had given up."""
        gave_up = np.flatnonzero(self.outcome == Outcome.TIMED_OUT)
        if not len(gave_up):
            return
        before = {
            (row, after): before
            for row, before, after in self.breaks
            if self.outcome[row] == Outcome.TIMED_OUT
        }
        for row in gave_up.tolist():
            emitted, last = int(self.emitted_tokens[row]), int(self.last_step[row])
            ends, finish_ns = instances[self.instance[row]].step_ends, self.finish_ns[row]
            late_ns = self.late_by(row)
            while emitted and ends.one(last) + self.frontend.token_ns(emitted) + late_ns > finish_ns:
                emitted -= 1
                last = before.pop((row, last), last - 1)
            self.emitted_tokens[row] = emitted
            self.last_step[row] = last if emitted else -1
            if not emitted:
                self.first_step[row] = -1
        self.breaks = [
            (row, start, end)
            for row, start, end in self.breaks
            if self.outcome[row] != Outcome.TIMED_OUT or (row, end) in before
        ]

    def late_by(self, row: int) -> int:
        """How late the client sees the tokens of a request for those of others."""
        return int(self.late_ns[row]) if self.frontend.behind_seq_ns else 0

    def _token_times(self, instances: Sequence[InstanceRecord]) -> tuple[Ints, Ints]:
        """First and last token as the client sees them, from the steps that emitted."""
        first_token_ns, last_token_ns = _unset(len(self.table)), _unset(len(self.table))
        for index, record in enumerate(instances):
            rows = np.flatnonzero((self.instance == index) & (self.emitted_tokens > 0))
            ends_ns = record.step_ends.at(np.concatenate((self.first_step[rows], self.last_step[rows])))
            first_token_ns[rows] = ends_ns[: len(rows)] + self.frontend.token_ns(1)
            tokens_ns = self.emitted_tokens[rows] * self.frontend.per_token_ns
            last_token_ns[rows] = ends_ns[len(rows) :] + (tokens_ns + self.frontend.behind_ns)
            if self.frontend.behind_seq_ns:
                first_token_ns[rows] += self.late_ns[rows]
                last_token_ns[rows] += self.late_ns[rows]
        return first_token_ns, last_token_ns


class InstanceLog:
    """What one instance did, and the fate of the requests dispatched to it. Its methods are `StepEvents`.

    Args:
        scheduler: the instance's: a `Scheduler` or, of block diffusion, a `DiffusionScheduler`.
    """

    def __init__(
        self,
        recorder: Recorder,
        scheduler: Any,
        record_steps: bool,
        features: Sequence[str] = FEATURE_NAMES,
    ) -> None:
        recorder.logs.append(self)
        self._to = recorder
        # To write one by one, memory views are quicker than the arrays.
        self._outcome, self._scheduled_ns = recorder.outcome.data, recorder.scheduled_ns.data
        self._emitted_tokens, self._cached_tokens = recorder.emitted_tokens.data, recorder.cached_tokens.data
        self._first_step, self._last_step = recorder.first_step.data, recorder.last_step.data
        self._preemptions = recorder.preemptions.data
        self._late_ns, self._behind_seq_ns = recorder.late_ns.data, recorder.frontend.behind_seq_ns
        self._features = features
        self._scheduler = scheduler
        self._ends = StepEnds()
        self._pauses: list[tuple[int, int]] = []
        """The index of a step, and the time without work before it."""
        self._in_progress = StepFeatures()
        """Of a step that was not over when the run ended."""
        self._runs = StepsTable((*RUN_COLUMNS, *features), recorder.spool) if record_steps else None
        self._preempted = 0
        """In all rows of the table so far."""

    def steps(self, step: Step, start_ns: int, run: StepRun) -> None:
        features = step.features
        self._note_run(features, start_ns, run)
        if self._behind_seq_ns and features.prefill_seqs:
            for request, _ in step.prefills:
                if request.first_tick < 0:  # of a prompt's steps, the last one brings the token
                    self._late_ns[request.row] = self._behind_seq_ns * features.emitted_rows

    def _note_run(self, features: StepFeatures, start_ns: int, run: StepRun) -> None:
        self._ends.append(run)
        if self._runs is not None:
            scheduler = self._scheduler
            state = (len(scheduler.waiting), len(scheduler.running), scheduler.blocks_in_use(run.steps))
            before, self._preempted = self._preempted, scheduler.counters.preemptions
            what = [getattr(features, name) for name in self._features]
            self._runs.append([start_ns, run.end_ns, run.steps, *state, self._preempted - before, *what])

    def in_progress(self, step: Step) -> None:
        """What it has computed is booked, but it is not over when the run ends."""
        self._in_progress = step.features

    def idle(self, duration_ns: int) -> None:
        self._pauses.append((self._ends.steps, duration_ns))

    def unservable(self, request: Request, now_ns: int) -> None:
        self._to.outcome[request.row] = Outcome.UNSERVABLE
        self._to.finish_ns[request.row] = now_ns
        if self._to.on_end is not None:
            self._to.on_end(request, now_ns)

    def timed_out(self, requests: list[Request]) -> None:
        to = self._to
        for request in requests:
            to.finish_ns[request.row] = seen_ns = max(request.deadline_ns, int(to.ready_ns[request.row]))
            if to.on_end is not None:
                to.on_end(request, seen_ns)
        self.ended(requests, Outcome.TIMED_OUT)

    def finished(self, requests: list[Request], end_ns: int) -> None:
        capped = [request for request in requests if request.finish_reason is _LENGTH]
        if capped:
            self.ended(capped, Outcome.LENGTH_CAPPED)
            self.ended([request for request in requests if request.finish_reason is not _LENGTH], _COMPLETED)
        else:
            self.ended(requests, _COMPLETED)
        if self._to.on_end is not None:
            front_end = self._to.frontend
            for request in requests:
                delay_ns = front_end.token_ns(request.generated) + front_end.at_end_ns
                delay_ns += self._to.late_by(request.row)
                self._to.on_end(request, end_ns + delay_ns)

    def ended(self, requests: list[Request], outcome: Outcome) -> None:
        row: Any  # one object; native code would make a new one for every column
        for request in requests:
            row = request.row
            self._outcome[row] = outcome
            self._scheduled_ns[row] = request.scheduled_ns
            self._emitted_tokens[row] = request.generated
            self._first_step[row] = request.first_tick
            self._last_step[row] = request.last_tick
            if request.cached_tokens > 0:
                self._cached_tokens[row] = request.cached_tokens
            if request.preemptions:
                self._preemptions[row] = request.preemptions
            if request.gaps:
                self._to.breaks += [(row, before, after) for before, after in request.gaps]

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
        steps = self._ends.steps
        idle_ns = sum(duration_ns for step, duration_ns in self._pauses if step < steps)
        return self._ends.last_ns - idle_ns if steps else 0


def _unset(rows: int) -> Ints:
    return np.full(rows, -1, dtype=np.int64)
