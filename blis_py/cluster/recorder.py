"""The recorder: the events of a run as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from blis_py.core.features import FEATURE_NAMES, StepFeatures, further_names
from blis_py.core.request import NEVER_NS, FinishReason, Request
from blis_py.core.step import Step
from blis_py.latency.base import FrontendDelays
from blis_py.latency.step_run import StepRun
from blis_py.metrics.emission import EmittedTokens
from blis_py.metrics.invariants import InternalError
from blis_py.metrics.record import InstanceRecord, Outcome, RunRecord
from blis_py.metrics.sessions import unsent_turns
from blis_py.metrics.step_ends import StepEnds
from blis_py.metrics.steps_table import Spool, StepsTable
from blis_py.metrics.visits import Onward, Role, Visits, by_instance
from blis_py.requests.table import Ints, Labels, RequestTable

if TYPE_CHECKING:
    from blis_py.metrics.decisions import Decisions
    from blis_py.metrics.handovers import HandOvers

RUN_COLUMNS = ("start_ns", "end_ns", "steps", "waiting", "running", "kv_blocks", "preemptions")
"""Columns of the steps table; the features follow."""

_LENGTH: Final = FinishReason.LENGTH
_COMPLETED: Final = Outcome.COMPLETED
_FIRST_ONWARD: Final = int(Onward.HANDED_OVER)
_COUNTS = ("emitted_tokens", "cached_tokens", "preemptions", "late_ns", "tokens_before")
_COLUMNS = (
    "request",
    "ready_ns",
    "outcome",
    "instance",
    "scheduled_ns",
    "finish_ns",
    "first_step",
    "last_step",
)


class Recorder:
    """The visits of a run as columns; -1 where an event has not happened.

    Rows beyond the requests are for visits after the first; arrays grow with them.

    Args:
        table: the requests.
        frontend: front-end delays of the instances.
        on_the_way_ns: time from a request's arrival to its dispatch.

    Attributes:
        on_end: called with an admitted request that has ended, for whatever reason, and the time at which its
            client sees that.
    """

    def __init__(self, table: RequestTable, frontend: FrontendDelays, on_the_way_ns: int = 0) -> None:
        self.table = table
        self.frontend = frontend
        self.logs: list[InstanceLog] = []
        """One log per instance."""
        self.spool = Spool()
        """Spool of columns that grow with the steps."""
        self._sent: list[int] | None = None
        """Rows in order of arrival, where arrivals are not known in advance."""
        self.on_end: Callable[[Request, int], None] | None = None
        self._on_the_way_ns = on_the_way_ns
        rows = len(table)
        self.num_visits = rows
        """Visits of all requests; the first visit of request r is visit r, dispatched or not."""
        self._latest: dict[int, int] = {}
        """Row -> latest visit, of requests with several visits."""
        self.request: Ints = np.arange(rows, dtype=np.int64)
        self.ready_ns: Ints = table.arrival_ns + (on_the_way_ns + frontend.before_enqueue_ns)
        """When each visit reaches the queue of its instance, if that is before the end of the run."""
        self.outcome = np.full(rows, Outcome.QUEUED, dtype=np.int8)
        self.instance = np.full(rows, -1, dtype=np.int32)
        self._instance = self.instance.data
        self.late_ns = np.zeros(rows if frontend.behind_seq_ns else 0, dtype=np.int64)
        """Of each visit, the delay of its client's tokens by those of others in the front end; empty without
        such delays."""
        self.scheduled_ns, self.finish_ns = _unset(rows), _unset(rows)
        self.first_step, self.last_step = _unset(rows), _unset(rows)
        self.emitted_tokens, self.cached_tokens, self.preemptions = (
            np.zeros(rows, dtype=np.int64) for _ in range(3)
        )
        self.tokens_before = np.zeros(0, dtype=np.int64)
        """Tokens that earlier visits of the request emitted; empty while every request has one visit."""
        self.breaks: list[tuple[int, int, int]] = []
        self.others: list[tuple[int, int, int]] = []
        """See `EmittedTokens`."""
        self.delivered_late: dict[int, int] = {}
        """Visit -> ns from the step that emitted its only token to the delivery by another instance."""
        self.decisions: Decisions | None = None
        self.handovers: HandOvers | None = None
        self._rejections: dict[int, str] = {}
        """Row -> reason of the rejection."""
        self._evictions: dict[int, str] = {}
        """Visit -> reason of the eviction; the visit may have ended by itself since."""
        self._gave_up = 0
        self._queued_ns: Ints | None = None
        """Time of entry into the gateway queue, by request; -1 = not queued."""
        self._gateway_ns: Ints | None = None
        """Time spent in the gateway queue, by request."""

    def listen(self, on_end: Callable[[Request, int], None]) -> None:
        """Expect every request to be reported when it is sent, since arrivals are not known in advance."""
        self._sent = []
        self.tell(on_end)

    def tell(self, on_end: Callable[[Request, int], None]) -> None:
        """Add a listener to the end of every admitted request."""
        before = self.on_end
        if before is None:
            self.on_end = on_end
            return

        def both(request: Request, seen_ns: int) -> None:
            before(request, seen_ns)
            on_end(request, seen_ns)

        self.on_end = both

    def sent(self, requests: Sequence[Request]) -> None:
        """Record requests that arrive now."""
        assert self._sent is not None
        for request in requests:
            row, arrival_ns = request.row, request.arrival_ns
            self._sent.append(row)
            self.table.arrival_ns[row], self.table.deadline_ns[row] = arrival_ns, request.deadline_ns
            self.ready_ns[row] = arrival_ns + self._on_the_way_ns + self.frontend.before_enqueue_ns

    def dispatched(self, request: Request, instance: int, ready_ns: int = -1) -> None:
        """Record the dispatch of a request.

        Args:
            ready_ns: when it reaches the queue there; known already for a first visit.
        """
        self._instance[request.visit] = instance
        if ready_ns >= 0:
            self.ready_ns[request.visit] = ready_ns

    def revisit(self, request: Request, ready_ns: int = NEVER_NS) -> None:
        """Open the next visit of a request whose latest one was ended by `InstanceLog.goes_on`.

        `dispatched` records its instance; until then it has none.

        Args:
            request: the request of the next visit, which has emitted nothing yet. Its `visit` is set.
            ready_ns: when it reaches the queue, if known.

        Raises:
            InternalError: the latest visit has not ended.
        """
        visit, row = self.num_visits, request.row
        if visit == len(self.outcome):
            self._grow()
        before = self._latest.get(row, row)
        if int(self.outcome[before]) < _FIRST_ONWARD:
            raise InternalError(f"request {request.id} begins a visit while another lasts")
        self.num_visits += 1
        self._latest[row] = request.visit = visit
        self.request[visit], self.ready_ns[visit] = row, ready_ns
        self.tokens_before[visit] = int(self.tokens_before[before]) + int(self.emitted_tokens[before])
        if self.frontend.behind_seq_ns:
            self.late_ns[visit] = self.late_ns[before]

    def deliver_late(self, request: Request, delay_ns: int) -> None:
        """Delay the token of a visit, which another instance delivers with the KV."""
        self.delivered_late[request.visit] = delay_ns

    def undelivered(self, request: Request) -> None:
        """Record that the only token of an ended visit never reached the client."""
        visit = request.visit
        self.emitted_tokens[visit] = 0
        self.first_step[visit] = self.last_step[visit] = -1

    def _grow(self) -> None:
        """Double the capacity for visits."""
        more = max(self.num_visits, 64)
        if not len(self.tokens_before):
            self.tokens_before = np.zeros(self.num_visits, dtype=np.int64)
        for name in (*_COLUMNS, *_COUNTS):
            column = getattr(self, name)
            if name == "late_ns" and not self.frontend.behind_seq_ns:
                continue
            blank = Outcome.QUEUED if name == "outcome" else 0 if name in _COUNTS else -1
            setattr(self, name, np.concatenate((column, np.full(more, blank, dtype=column.dtype))))
        self._instance = self.instance.data
        for log in self.logs:
            log.bind()

    def held(self, request: Request, duration_ns: int) -> None:
        """Record the time a request was held at dispatch while no instance was ready."""
        self.ready_ns[request.visit] += duration_ns

    def rejected(self, request: Request, now_ns: int, why: str) -> None:
        """Record a request that is rejected at admission or has no instance to go to."""
        visit = request.visit
        self.outcome[visit], self.finish_ns[visit] = Outcome.REJECTED, now_ns
        self._rejections[request.row] = why

    @property
    def num_rejected(self) -> int:
        """Requests that have ended without being dispatched, so far."""
        return len(self._rejections) + self._gave_up

    def _reasons(self) -> Labels | None:
        """Reasons of rejections and evictions; `None` if there were none."""
        evicted = {
            int(self.request[visit]): why
            for visit, why in self._evictions.items()
            if self.outcome[visit] == Outcome.EVICTED
        }
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
        """Allocate the columns of the gateway queue."""
        self._queued_ns, self._gateway_ns = _unset(len(self.table)), _unset(len(self.table))

    def queued(self, request: Request, now_ns: int) -> None:
        """Record the entry of a request into the gateway queue."""
        assert self._queued_ns is not None
        self._queued_ns[request.row] = now_ns

    def left_gateway(self, request: Request, now_ns: int) -> None:
        """Record that a request leaves the gateway queue."""
        assert self._queued_ns is not None
        assert self._gateway_ns is not None
        row = request.row
        waited_ns = now_ns - int(self._queued_ns[row])
        self._queued_ns[row], self._gateway_ns[row] = -1, waited_ns
        self.ready_ns[row] += waited_ns

    def gave_up(self, request: Request, now_ns: int) -> None:
        """Record a client timeout before dispatch."""
        visit = request.visit
        self.outcome[visit], self.finish_ns[visit] = Outcome.TIMED_OUT, now_ns
        self._gave_up += 1
        if self.on_end is not None:
            self.on_end(request, now_ns)

    def evicted(self, request: Request, why: str) -> None:
        """Record that a request is to be evicted; it leaves its instance unless it ends before."""
        self._evictions[request.visit] = why

    def _note_evictions(self) -> None:
        """Reclassify requests marked for eviction that left as timed out."""
        for visit in self._evictions:
            if self.outcome[visit] == Outcome.TIMED_OUT:
                self.outcome[visit] = Outcome.EVICTED

    def _waits(self, end_ns: int) -> Ints | None:
        """Time each request has spent in the gateway queue."""
        if self._queued_ns is None or self._gateway_ns is None:
            return None
        return np.where(self._queued_ns >= 0, end_ns - self._queued_ns, self._gateway_ns)

    def record(self, end_ns: int) -> RunRecord:
        """The finished record."""
        record = self._record(end_ns)
        if self._sent is None:
            return record
        sent = np.array(self._sent, dtype=np.int64)
        record.unsent_turns = unsent_turns(self.table, record.outcome, sent)
        return record.take(sent)

    def _record(self, end_ns: int) -> RunRecord:
        instances = [log.record() for log in self.logs]
        roles = np.array([log.role for log in self.logs] + [Role.BOTH], dtype=np.int8)
        self.logs.clear()  # with the instances' KV pools
        self._forget_unseen_tokens(instances)
        self._note_evictions()
        return RunRecord(
            table=self.table,
            visits=self._visits(end_ns, instances, roles),
            instances=instances,
            frontend=self.frontend,
            end_ns=end_ns,
            decisions=self.decisions,
            handovers=self.handovers,
            rejection=self._reasons(),
            gateway_ns=self._waits(end_ns),
        )

    def _visits(self, end_ns: int, instances: Sequence[InstanceRecord], roles: NDArray[np.int8]) -> Visits:
        count = self.num_visits
        outcome, instance, finish_ns = self.outcome[:count], self.instance[:count], self.finish_ns[:count]
        emission = self._emission()
        first_token_ns, last_token_ns = self._token_times(instances, emission)
        done = outcome <= Outcome.LENGTH_CAPPED
        finish_ns[done] = last_token_ns[done] + self.frontend.at_end_ns
        ready_ns = self.ready_ns[:count]
        came = (instance >= 0) & (ready_ns <= np.where(outcome >= Onward.HANDED_OVER, finish_ns, end_ns))
        return Visits(
            requests=len(self.table),
            request=self.request[:count],
            instance=instance,
            role=roles[instance],
            outcome=outcome,
            enqueue_ns=np.where(came, ready_ns, -1),
            scheduled_ns=self.scheduled_ns[:count],
            first_token_ns=first_token_ns,
            last_token_ns=last_token_ns,
            finish_ns=finish_ns,
            emitted_tokens=self.emitted_tokens[:count],
            cached_tokens=self.cached_tokens[:count],
            preemptions=self.preemptions[:count],
            emission=emission,
        )

    def _emission(self) -> EmittedTokens:
        """Emissions by step."""
        first, last = self.first_step[: self.num_visits], self.last_step[: self.num_visits]
        others = _rows(self.others)
        visit, step, _ = others.T
        others = others[(step >= first[visit]) & (step <= last[visit])]
        return EmittedTokens(first, last, _rows(self.breaks), others)

    def _forget_unseen_tokens(self, instances: Sequence[InstanceRecord]) -> None:
        """Remove the tokens emitted after the client had timed out."""
        visits = self._given_up()
        if not len(visits):
            return
        gone = np.zeros(self.num_visits, dtype=np.bool_)
        gone[visits] = True
        before = {(visit, after): before for visit, before, after in self.breaks if gone[visit]}
        several = {(visit, step): tokens for visit, step, tokens in self.others if gone[visit]}
        for visit in visits.tolist():
            emitted, last = int(self.emitted_tokens[visit]), int(self.last_step[visit])
            if not emitted:
                continue
            ends, finish_ns = instances[self.instance[visit]].step_ends, self._given_up_ns(visit)
            late_ns, earlier = self.late_by(visit), self.earlier_tokens(visit)
            while (
                emitted and ends.one(last) + self.frontend.token_ns(earlier + emitted) + late_ns > finish_ns
            ):
                emitted -= 1
                left = several.pop((visit, last), 1) - 1
                if left:
                    several[visit, last] = left
                else:
                    last = before.pop((visit, last), last - 1)
            self.emitted_tokens[visit] = emitted
            self.last_step[visit] = last if emitted else -1
            if not emitted:
                self.first_step[visit] = -1
        self.breaks = [
            (visit, start, end)
            for visit, start, end in self.breaks
            if not gone[visit] or (visit, end) in before
        ]
        self.others = [row for row in self.others if not gone[row[0]]]
        self.others += [(visit, step, tokens) for (visit, step), tokens in several.items() if tokens > 1]

    def _given_up(self) -> Ints:
        """All visits of requests whose clients timed out."""
        last = np.flatnonzero(self.outcome[: self.num_visits] == Outcome.TIMED_OUT)
        if not self._latest or not len(last):
            return last
        rows = np.zeros(len(self.table), dtype=np.bool_)
        rows[self.request[last]] = True
        return np.flatnonzero(rows[self.request[: self.num_visits]])

    def _given_up_ns(self, visit: int) -> int:
        """When the client of a visit's request timed out."""
        row = int(self.request[visit])
        return int(self.finish_ns[self._latest.get(row, row)])

    def late_by(self, visit: int) -> int:
        """Delay of a visit's tokens at the client by those of others."""
        late_ns = int(self.late_ns[visit]) if self.frontend.behind_seq_ns else 0
        return late_ns + self.delivered_late.get(visit, 0)

    def earlier_tokens(self, visit: int) -> int:
        """Tokens emitted by earlier visits of its request."""
        return int(self.tokens_before[visit]) if visit >= len(self.table) else 0

    def _token_times(self, instances: Sequence[InstanceRecord], emission: EmittedTokens) -> tuple[Ints, Ints]:
        """First and last token of each visit as the client sees them, computed from the steps that
        emitted.

        A block is seen once the front end has processed all of its tokens.
        """
        count, per_token_ns = self.num_visits, self.frontend.per_token_ns
        first_token_ns, last_token_ns = _unset(count), _unset(count)
        visits = np.flatnonzero(self.emitted_tokens[:count] > 0)
        at_once = emission.first_tokens()[visits] if emission.as_blocks else 1
        earlier = self.tokens_before[visits] if len(self.tokens_before) else 0
        first, last = np.empty(len(visits), np.int64), np.empty(len(visits), np.int64)
        for index, places in by_instance(self.instance[visits]):
            own, step_ends = visits[places], instances[index].step_ends
            ends_ns = step_ends.at(np.concatenate((self.first_step[own], self.last_step[own])))
            first[places], last[places] = ends_ns[: len(own)], ends_ns[len(own) :]
        first_token_ns[visits] = first + self.frontend.behind_ns + (earlier + at_once) * per_token_ns
        tokens_ns = (earlier + self.emitted_tokens[visits]) * per_token_ns
        last_token_ns[visits] = last + (tokens_ns + self.frontend.behind_ns)
        if self.frontend.behind_seq_ns:
            first_token_ns[visits] += self.late_ns[visits]
            last_token_ns[visits] += self.late_ns[visits]
        for visit, delay_ns in self.delivered_late.items():
            if self.emitted_tokens[visit]:
                first_token_ns[visit] += delay_ns
                last_token_ns[visit] += delay_ns
        return first_token_ns, last_token_ns


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
        self.bind()
        self._behind_seq_ns = recorder.frontend.behind_seq_ns
        self._features = (*features, *further_names())
        self._scheduler = scheduler
        self._ends = StepEnds()
        self._pauses: list[tuple[int, int]] = []
        """Index of a step and the idle time before it."""
        self._in_progress = StepFeatures()
        """Features of a step that had not ended when the run ended."""
        self._runs = StepsTable((*RUN_COLUMNS, *self._features), recorder.spool) if record_steps else None
        self._preempted = 0
        """Preemptions in all rows of the table so far."""

    def bind(self) -> None:
        """Bind memory views of the recorder's current arrays, which are faster for single writes."""
        recorder = self._to
        self._outcome, self._scheduled_ns = recorder.outcome.data, recorder.scheduled_ns.data
        self._emitted_tokens, self._cached_tokens = recorder.emitted_tokens.data, recorder.cached_tokens.data
        self._first_step, self._last_step = recorder.first_step.data, recorder.last_step.data
        self._preemptions = recorder.preemptions.data
        self._late_ns = recorder.late_ns.data

    def steps(self, step: Step, start_ns: int, run: StepRun) -> None:
        features = step.features
        self._note_run(features, start_ns, run)
        if self._behind_seq_ns and features.prefill_seqs:
            for request, _ in step.prefills:
                # Of a prompt's steps, the last one brings the token.
                if request.first_tick < 0 and not request.continues:
                    self._late_ns[request.visit] = self._behind_seq_ns * features.emitted_rows

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
        self._pauses.append((self._ends.steps, duration_ns))

    def unservable(self, request: Request, now_ns: int) -> None:
        visit = request.visit
        self._to.outcome[visit], self._to.finish_ns[visit] = Outcome.UNSERVABLE, now_ns
        if self._to.on_end is not None:
            self._to.on_end(request, now_ns)

    def timed_out(self, requests: list[Request]) -> None:
        to = self._to
        for request in requests:
            visit = request.visit
            to.finish_ns[visit] = seen_ns = max(request.deadline_ns, int(to.ready_ns[visit]))
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
                delay_ns += self._to.late_by(request.visit)
                self._to.on_end(request, end_ns + delay_ns)

    def goes_on(self, requests: list[Request], how: Onward, now_ns: int) -> None:
        """Close the visits of requests that leave now and continue elsewhere.

        They are settled; what they emitted here has been delivered. `Recorder.revisit` opens the next
        visit.
        """
        for request in requests:
            self._to.finish_ns[request.visit] = now_ns
        self.ended(requests, how)

    def ended(self, requests: list[Request], outcome: Outcome | Onward) -> None:
        visit: Any  # one object; native code would create a new one for every column
        for request in requests:
            visit = request.visit
            self._outcome[visit] = outcome
            self._scheduled_ns[visit] = request.scheduled_ns
            self._emitted_tokens[visit] = request.generated - request.carried
            self._first_step[visit] = request.first_tick
            self._last_step[visit] = request.last_tick
            if request.cached_tokens > 0:
                self._cached_tokens[visit] = request.cached_tokens
            if request.preemptions:
                self._preemptions[visit] = request.preemptions
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
        steps = self._ends.steps
        idle_ns = sum(duration_ns for step, duration_ns in self._pauses if step < steps)
        return self._ends.last_ns - idle_ns if steps else 0


def _rows(rows: list[tuple[int, int, int]]) -> Ints:
    return np.array(sorted(rows), dtype=np.int64).reshape(-1, 3)


def _unset(rows: int) -> Ints:
    return np.full(rows, -1, dtype=np.int64)
