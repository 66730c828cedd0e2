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
        self._latest: dict[int, int] = {}
        """Row -> latest visit, of requests with several visits."""
        self.request: Ints = np.arange(rows, dtype=np.int64)
        self.ready_ns: Ints = table.arrival_ns + (on_the_way_ns + frontend.before_enqueue_ns)
        """When each visit reaches the queue of its instance, if that is before the end of the run."""
        self.outcome = np.full(rows, Outcome.QUEUED, dtype=np.int8)
        self.instance = np.full(rows, -1, dtype=np.int32)
        self.late_ns = np.zeros(rows if frontend.behind_seq_ns else 0, dtype=np.int64)
        """Of each visit, the delay of its client's tokens by those of others in the front end; empty without
        such delays."""
        self.scheduled_ns, self.finish_ns = unset(rows), unset(rows)
        self.first_step, self.last_step = unset(rows), unset(rows)
        self.emitted_tokens, self.cached_tokens, self.preemptions = (
            np.zeros(rows, dtype=np.int64) for _ in range(3)
        )
        self.tokens_before = np.zeros(0, dtype=np.int64)
        """Tokens that earlier visits of the request emitted; empty while every request has one visit."""
        self._capacity = rows
        """Visits for which the columns have room."""
        self._outcomes: Any = ()
        self._rows: Any = ()
        self._ready: Any = ()
        self._tokens: Any = ()
        self._emitted: Any = ()
        self._lates: Any = None
        """Memory views of the columns of further visits, which are faster for single writes."""
        self.breaks: list[tuple[int, int, int]] = []
        self.others: list[tuple[int, int, int]] = []
        """See `EmittedTokens`."""
        self.delivered_late: dict[int, int] = {}
        """Visit -> ns from the step that emitted its only token to the delivery by another instance."""

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
        if number == self._capacity:
            self._grow()
        visit: Any = number  # one object each; native code would create a new one for every column
        row: Any = request.row
        before: Any = self._latest.get(row, row)
        if self._outcomes[before] < _FIRST_ONWARD:
            raise InternalError(f"request {request.id} begins a visit while another lasts")
        self.num_visits, request.visit = number + 1, number
        self._latest[row] = visit
        self._rows[visit] = row
        self._ready[visit] = ready_ns
        tokens = self._tokens[before] + self._emitted[before]
        if tokens:
            self._tokens[visit] = tokens
        if self._lates is not None:
            self._lates[visit] = self._lates[before]

    def has_moved(self, row: int) -> bool:
        """Whether a request has begun a visit after its first."""
        return row in self._latest

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
        self._capacity = len(self.outcome)
        self._outcomes, self._rows, self._ready = self.outcome.data, self.request.data, self.ready_ns.data
        self._tokens, self._emitted = self.tokens_before.data, self.emitted_tokens.data
        self._lates = self.late_ns.data if self.frontend.behind_seq_ns else None

    def of_timed_out(self) -> Ints:
        """All visits of requests whose clients timed out."""
        last = np.flatnonzero(self.outcome[: self.num_visits] == Outcome.TIMED_OUT)
        if not self._latest or not len(last):
            return last
        rows = np.zeros(len(self.table), dtype=np.bool_)
        rows[self.request[last]] = True
        return np.flatnonzero(rows[self.request[: self.num_visits]])

    def timed_out_ns(self, visit: int) -> int:
        """Time at which the client of a visit's request timed out."""
        row = int(self.request[visit])
        return int(self.finish_ns[self._latest.get(row, row)])

    def late_by(self, visit: int) -> int:
        """Delay of a visit's tokens at the client by those of others."""
        late_ns = int(self.late_ns[visit]) if self.frontend.behind_seq_ns else 0
        return late_ns + self.delivered_late.get(visit, 0)

    def earlier_tokens(self, visit: int) -> int:
        """Tokens emitted by earlier visits of its request."""
        return int(self.tokens_before[visit]) if visit >= len(self.table) else 0


def unset(rows: int) -> Ints:
    """A column of events that have not happened."""
    return np.full(rows, -1, dtype=np.int64)
