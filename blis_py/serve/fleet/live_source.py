"""Requests that are sent while the simulation runs: the table with room for them, and their source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from blis_py.cluster.ingress.source import RequestFactory, Send
from blis_py.cluster.time.clock import SimClock
from blis_py.core.request import Request
from blis_py.core.slo import CLUSTER_PRIORITY
from blis_py.requests.table import Labels, RequestTable


def empty_table(rows: int, models: Sequence[str] = ()) -> RequestTable:
    """A table with room for requests that come later, for these models."""
    ones = np.ones(rows, dtype=np.int64)
    names = ("", *CLUSTER_PRIORITY)
    table = RequestTable.build(
        np.zeros(rows, dtype=np.int64),
        ones,
        ones.copy(),
        max_tokens=np.zeros(rows, dtype=np.int64),
        deadline_ns=np.full(rows, -1, dtype=np.int64),
        slo_class=Labels(np.zeros(rows, dtype=np.int32), names),
        content=np.full(rows, -1, dtype=np.int64),
        contents=[],
        streaming=np.ones(rows, dtype=np.bool_),
        request_id=[""] * rows,
        model=Labels(np.zeros(rows, dtype=np.int32), ("", *models)),
    )
    return replace(table, prefix_tokens=np.zeros(rows, dtype=np.int64))


class LiveSource:
    """A source fed from outside, one request at a time; a `Source` that listens."""

    listens = True

    def __init__(self, table: RequestTable, on_end: Callable[[Request, int], None]) -> None:
        self.table, self._on_end = table, on_end
        self.rows = 0

    def start(self, env: SimClock, make: RequestFactory, send: Send, ahead: bool) -> None:
        self._events, self._make, self._send = env.events, make, send

    def arrive(self, now_ns: int, request: Request) -> None:
        """Send a request at a time."""
        self._events.call_at(now_ns, lambda _: self._send([request]))

    def made(self, row: int) -> Request:
        """The request of a row."""
        (request,) = self._make(slice(row, row + 1))
        return request

    def safe_until_ns(self) -> int:
        """Never called: this source is a listening one."""
        raise NotImplementedError

    def ended(self, request: Request, seen_ns: int) -> None:
        self._on_end(request, seen_ns)
