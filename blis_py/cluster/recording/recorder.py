"""The recorder: the events of a run as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from blis_py.cluster.recording.client_times import forget_unseen_tokens, token_times
from blis_py.cluster.recording.visit_columns import VisitColumns, unset
from blis_py.core.request import Request
from blis_py.latency.base import FrontendDelays
from blis_py.metrics.emission import EmittedTokens
from blis_py.metrics.record import InstanceRecord, Outcome, RunRecord
from blis_py.metrics.sessions import unsent_turns
from blis_py.metrics.steps_table import Spool
from blis_py.metrics.visits import Onward, Role, Visits
from blis_py.requests.table import Ints, Labels, RequestTable

if TYPE_CHECKING:
    from blis_py.metrics.decisions import Decisions
    from blis_py.metrics.handovers import HandOvers


class VisitLog(Protocol):
    """The log of one instance, see `blis_py.cluster.recording.instance_log`."""

    role: Role

    def record(self) -> InstanceRecord:
        """The finished record."""
        ...


class Recorder(VisitColumns):
    """The visits of a run, and what the cluster decided about its requests.

    Args:
        table: the requests.
        frontend: front-end delays of the instances.
        on_the_way_ns: time from a request's arrival to its dispatch.

    Attributes:
        on_end: called with an admitted request that has ended, for whatever reason, and the time at which its
            client sees that.
        on_failure: the same, called first, with one that is not finished.
        on_eviction: called with a request that is to be evicted.
    """

    def __init__(self, table: RequestTable, frontend: FrontendDelays, on_the_way_ns: int = 0) -> None:
        super().__init__(table, frontend, on_the_way_ns)
        self.logs: list[VisitLog] = []
        """One log per instance."""
        self.spool = Spool()
        """Spool of columns that grow with the steps."""
        self._sent: list[int] | None = None
        """Rows in order of arrival, where arrivals are not known in advance."""
        self.on_end: Callable[[Request, int], None] | None = None
        self.on_failure: Callable[[Request, int], None] | None = None
        self.on_eviction: Callable[[Request], None] | None = None
        self._on_the_way_ns = on_the_way_ns
        self.decisions: Decisions | None = None
        self.handovers: HandOvers | None = None
        self._rejections: dict[int, str] = {}
        """Row -> reason of the rejection."""
        self._evictions: dict[int, str] = {}
        """Row -> reason of the eviction; the request may have ended by itself since."""
        self._timed_out = 0
        self._queued_ns: Ints | None = None
        """Time of entry into the gateway queue, by request; -1 = not queued."""
        self._gateway_ns: Ints | None = None
        """Time spent in the gateway queue, by request."""

    def listen(self, on_end: Callable[[Request, int], None]) -> None:
        """Expect every request to be reported when it is sent, since arrivals are not known in advance."""
        self._sent = []
        self.notify(on_end)

    def notify(self, on_end: Callable[[Request, int], None]) -> None:
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
        self.views.instance[request.visit] = instance
        if ready_ns >= 0:
            self.views.ready_ns[request.visit] = ready_ns

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
        return len(self._rejections) + self._timed_out

    def _reasons(self) -> Labels | None:
        """Reasons of rejections and evictions; `None` if there were none."""
        evicted = {
            row: why
            for row, why in self._evictions.items()
            if self.outcome[self.latest_visit(row)] == Outcome.EVICTED
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
        self._queued_ns, self._gateway_ns = unset(len(self.table)), unset(len(self.table))

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

    def timed_out(self, request: Request, now_ns: int) -> None:
        """Record a client timeout before dispatch."""
        visit = request.visit
        self.outcome[visit], self.finish_ns[visit] = Outcome.TIMED_OUT, now_ns
        self._timed_out += 1
        self.failed(request, now_ns)

    def lost(self, request: Request, now_ns: int, why: str) -> None:
        """Record the end of a request between two visits: no instance takes it on."""
        self.outcome[request.visit], self.finish_ns[request.visit] = Outcome.EVICTED, now_ns
        self._evictions[request.row] = why
        self.failed(request, now_ns)

    def failed(self, request: Request, seen_ns: int) -> None:
        """Report the end of an admitted request that is not finished.

        Args:
            seen_ns: when its client sees that.
        """
        if self.on_failure is not None:
            self.on_failure(request, seen_ns)
        if self.on_end is not None:
            self.on_end(request, seen_ns)

    def evicted(self, request: Request, why: str) -> None:
        """Record that a request is to be evicted; it leaves its instance unless it ends before.

        If its visit ends with the step in progress and goes on elsewhere, it leaves there.
        """
        self._evictions[request.row] = why
        if self.on_eviction is not None:
            self.on_eviction(request)

    def _note_evictions(self) -> None:
        """Reclassify requests marked for eviction that left as timed out."""
        for row in self._evictions:
            visit = self.latest_visit(row)
            if self.outcome[visit] == Outcome.TIMED_OUT:
                self.outcome[visit] = Outcome.EVICTED

    def _waits_ns(self, end_ns: int) -> Ints | None:
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
            gateway_ns=self._waits_ns(end_ns),
        )

    def _visits(self, end_ns: int, instances: Sequence[InstanceRecord], roles: NDArray[np.int8]) -> Visits:
        count = self.num_visits
        outcome, instance, finish_ns = self.outcome[:count], self.instance[:count], self.finish_ns[:count]
        emission = self._emission()
        first_token_ns, last_token_ns = token_times(self, instances, emission)
        done = outcome <= Outcome.LENGTH_CAPPED
        finish_ns[done] = last_token_ns[done] + self.frontend.at_end_ns
        ready_ns = self.ready_ns[:count]
        enqueued = (instance >= 0) & (ready_ns <= np.where(outcome >= Onward.HANDED_OVER, finish_ns, end_ns))
        return Visits(
            requests=len(self.table),
            request=self.request[:count],
            instance=instance,
            role=roles[instance],
            outcome=outcome,
            enqueue_ns=np.where(enqueued, ready_ns, -1),
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
        forget_unseen_tokens(self, instances)


def _rows(rows: list[tuple[int, int, int]]) -> Ints:
    return np.array(sorted(rows), dtype=np.int64).reshape(-1, 3)
