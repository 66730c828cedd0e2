"""The columns of visits while a run lasts."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from blis_py.core.request import NEVER_NS, Request
from blis_py.latency.base import FrontendDelays
from blis_py.metrics.invariants import InternalError
from blis_py.metrics.record import Outcome
from blis_py.metrics.visits import Onward
from blis_py.requests.table import Ints, RequestTable

_FIRST_ONWARD: Final = int(Onward.HANDED_OVER)
_COUNTS = ("emitted_tokens", "cached_tokens", "preemptions", "late_ns", "delivered_late_ns", "tokens_before")
_SELDOM = ("late_ns", "delivered_late_ns")
"""Columns that are empty unless they are needed."""
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


class VisitColumns:
    """The visits of a run as columns; -1 where an event has not happened.

    Rows beyond the requests are for visits after the first; arrays grow with them.

    Args:
        table: the requests.
        frontend: front-end delays of the instances.
        on_the_way_ns: time from a request's arrival to its dispatch.
    """

    def __init__(self, table: RequestTable, frontend: FrontendDelays, on_the_way_ns: int = 0) -> None:
        self.table = table
        self.frontend = frontend
        rows = len(table)
        self.num_visits = rows
        """Visits of all requests; the first visit of request r is visit r, dispatched or not."""
        self.latest: Ints = np.zeros(0, dtype=np.int64)
        """Latest visit of each request; empty while every request has one visit."""
        self.request: Ints = np.arange(rows, dtype=np.int64)
        self.ready_ns: Ints = table.arrival_ns + (on_the_way_ns + frontend.before_enqueue_ns)
        """Arrival of each visit in the queue of its instance, if that is before the end of the run."""
        self.outcome = np.full(rows, Outcome.QUEUED, dtype=np.int8)
        self.instance = np.full(rows, -1, dtype=np.int32)
        self.late_ns = np.zeros(rows if frontend.vary else 0, dtype=np.int64)
        """Delay of each visit's tokens by its prompt and by other clients' tokens in the front end; empty
        without such delays."""
        self.scheduled_ns, self.finish_ns = unset(rows), unset(rows)
        self.first_step, self.last_step = unset(rows), unset(rows)
        self.emitted_tokens, self.cached_tokens, self.preemptions = (
            np.zeros(rows, dtype=np.int64) for _ in range(3)
        )
        self.tokens_before = np.zeros(0, dtype=np.int64)
        """Tokens that earlier visits of the request emitted; empty while every request has one visit."""
        self._max_visits = rows
        """Visits for which the columns have room."""
        self.breaks: list[tuple[int, int, int]] = []
        self.others: list[tuple[int, int, int]] = []
        """See `EmittedTokens`."""
        self.delivered_late_ns: Ints = np.zeros(0, dtype=np.int64)
        """Time of each visit from the step that emitted its only token to the delivery by another
        instance; empty while there is none."""
        self.views = ColumnViews(self)

    def revisit(self, request: Request, ready_ns: int = NEVER_NS) -> None:
        """Open the next visit of a request whose latest one was ended by `InstanceLog.goes_on`.

        `dispatched` records its instance; until then it has none.

        Args:
            request: the request of the next visit, which has emitted nothing yet. Its `visit` is set.
            ready_ns: when it reaches the queue, if known.

        Raises:
            InternalError: the latest visit has not ended.
        """
        number = self.num_visits
        if number == self._max_visits:
            self._grow()
        visit: Any = number  # one object each; native code would create a new one for every column
        row: Any = request.row
        views = self.views
        before: Any = views.latest[row]
        if views.outcome[before] < _FIRST_ONWARD:
            raise InternalError(f"request {request.id} begins a visit while another lasts")
        self.num_visits, request.visit = number + 1, number
        views.latest[row] = visit
        views.request[visit] = row
        views.ready_ns[visit] = ready_ns
        tokens = views.tokens_before[before] + views.emitted_tokens[before]
        if tokens:
            views.tokens_before[visit] = tokens
        if self.frontend.vary:
            views.late_ns[visit] = views.late_ns[before]

    def has_moved(self, row: int) -> bool:
        """Whether a request has begun a visit after its first."""
        return self.latest_visit(row) != row

    def latest_visit(self, row: int) -> int:
        """The visit that a request has begun last."""
        return int(self.latest[row]) if len(self.latest) else row

    def deliver_late(self, request: Request, delay_ns: int) -> None:
        """Delay the token of a visit, which another instance delivers with the KV."""
        if not len(self.delivered_late_ns):
            self.delivered_late_ns = np.zeros(self._max_visits, dtype=np.int64)
            self.views.bind(self)
        self.views.delivered_late_ns[request.visit] = delay_ns

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
            self.latest = np.arange(len(self.table), dtype=np.int64)
        for name in (*_COLUMNS, *_COUNTS):
            column = getattr(self, name)
            if name in _SELDOM and not len(column):
                continue
            blank = Outcome.QUEUED if name == "outcome" else 0 if name in _COUNTS else -1
            setattr(self, name, np.concatenate((column, np.full(more, blank, dtype=column.dtype))))
        self._max_visits = len(self.outcome)
        self.views.bind(self)

    def of_timed_out(self) -> Ints:
        """All visits of requests whose clients timed out."""
        last = np.flatnonzero(self.outcome[: self.num_visits] == Outcome.TIMED_OUT)
        if not len(self.latest) or not len(last):
            return last
        rows = np.zeros(len(self.table), dtype=np.bool_)
        rows[self.request[last]] = True
        return np.flatnonzero(rows[self.request[: self.num_visits]])

    def timed_out_ns(self, visit: int) -> int:
        """Time at which the client of a visit's request timed out."""
        row = int(self.request[visit])
        return int(self.finish_ns[self.latest_visit(row)])

    def late_by(self, visit: int) -> int:
        """Delay of a visit's tokens at the client by its prompt, by those of others, and by a hand-over."""
        late_ns = int(self.late_ns[visit]) if self.frontend.vary else 0
        return late_ns + (int(self.delivered_late_ns[visit]) if len(self.delivered_late_ns) else 0)

    def earlier_tokens(self, visit: int) -> int:
        """Tokens emitted by earlier visits of its request."""
        return int(self.tokens_before[visit]) if visit >= len(self.table) else 0


class ColumnViews:
    """Memory views of the present columns, which are faster for single reads and writes.

    One for all writers: views of their own would be some dozen cache lines for each instance.
    """

    request: Any
    ready_ns: Any
    outcome: Any
    instance: Any
    scheduled_ns: Any
    finish_ns: Any
    first_step: Any
    last_step: Any
    emitted_tokens: Any
    cached_tokens: Any
    preemptions: Any
    late_ns: Any
    delivered_late_ns: Any
    tokens_before: Any
    latest: Any

    def __init__(self, columns: VisitColumns) -> None:
        self.bind(columns)

    def bind(self, columns: VisitColumns) -> None:
        """View the columns as they are now."""
        self.request, self.ready_ns = columns.request.data, columns.ready_ns.data
        self.outcome, self.instance = columns.outcome.data, columns.instance.data
        self.scheduled_ns, self.finish_ns = columns.scheduled_ns.data, columns.finish_ns.data
        self.first_step, self.last_step = columns.first_step.data, columns.last_step.data
        self.emitted_tokens, self.cached_tokens = columns.emitted_tokens.data, columns.cached_tokens.data
        self.preemptions, self.late_ns = columns.preemptions.data, columns.late_ns.data
        self.delivered_late_ns = columns.delivered_late_ns.data
        self.tokens_before, self.latest = columns.tokens_before.data, columns.latest.data


def unset(rows: int) -> Ints:
    """A column of events that have not happened."""
    return np.full(rows, -1, dtype=np.int64)
