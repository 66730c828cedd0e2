"""Sources of requests: open loops, and the interface of listening sources, which react to the end of
requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Protocol

import numpy as np

from blis_py.cluster.time.clock import SimClock
from blis_py.cluster.time.events import CHANGES, Call, EventQueue
from blis_py.core.kv import KeySpace
from blis_py.core.request import NEVER_NS, Request
from blis_py.core.slo import instance_priorities
from blis_py.errors import InputError
from blis_py.requests.table import RequestTable

CHUNK = 4096
"""Number of requests to create, and to send ahead of time, at once."""

Send = Callable[[Sequence[Request]], None]
"""Send requests in order of arrival: when they arrive, or before."""


class Source(Protocol):
    """A source of requests."""

    table: RequestTable
    """All requests that may come. A source that listens fills in arrivals and deadlines as it sends."""
    listens: bool
    """Whether the end of one request may cause another to be sent. If so, lookahead is impossible."""

    def start(self, env: SimClock, make: RequestFactory, send: Send, ahead: bool) -> None:
        """Begin to send; as SimPy processes, where needed.

        Args:
            make: creates requests from rows of the table.
            ahead: requests may be sent before they arrive; their routing does not depend on the state of the
                cluster.
        """
        ...

    def safe_until_ns(self) -> int:
        """No unsent request arrives before or at this time. Not called if the source listens."""
        ...

    def ended(self, request: Request, seen_ns: int) -> None:
        """Handle the end of a request, for whatever reason. Called if the source listens.

        Args:
            seen_ns: when its client sees that, which may be later than now or, after a client timeout,
                earlier.
        """
        ...


class RequestFactory:
    """Factory of the requests of a table.

    Args:
        kind: their class.
        slo_priorities: cluster-side priorities of SLO classes that replace the defaults.

    Raises:
        InputError: an SLO class without a priority.
    """

    def __init__(
        self,
        table: RequestTable,
        block_size: int,
        slo_priorities: Mapping[str, int] | None = None,
        kind: type[Request] = Request,
    ) -> None:
        by_class = instance_priorities(slo_priorities)
        unknown = sorted(set(table.slo_class.names) - set(by_class))
        if unknown:
            known = ", ".join(filter(None, by_class))
            fix = f"use one of {known}, or give it a priority in slo_priorities"
            raise InputError("SLO class without a priority", key="slo_class", value=unknown[0], fix=fix)
        self._table, self._kind = table, kind
        self._priority_of_code = np.array([by_class[name] for name in table.slo_class.names])
        self._keys_of = KeySpace(block_size).keys

    def __call__(self, part: slice) -> list[Request]:
        """The requests of consecutive rows."""
        table, keys_of, contents = self._table, self._keys_of, self._table.contents
        constrained = () if table.constrained is None else (table.constrained[part].tolist(),)
        return list(
            map(
                self._kind,
                table.ids(part),
                table.arrival_ns[part].tolist(),
                table.prompt_tokens[part].tolist(),
                table.output_tokens[part].tolist(),
                table.max_tokens[part].tolist(),
                self._priority_of_code[table.slo_class.codes[part]].tolist(),
                table.deadline_ns[part].tolist(),
                [keys_of(contents[i]) if i >= 0 else () for i in table.content[part].tolist()],
                range(part.start, part.stop),
                self._extra_keys(part),
                repeat(False) if table.ends_by_eos is None else table.ends_by_eos[part].tolist(),
                *constrained,
            )
        )

    def _extra_keys(self, part: slice) -> Iterable[str | None]:
        extra_key = self._table.extra_key
        if extra_key is None:
            return repeat(None)
        return [name or None for name in extra_key.take(part).to_list()]


class TableSource:
    """An open loop: requests arrive at fixed times, independent of the progress of others.

    Args:
        until_ns: requests that arrive later are left out.
    """

    listens = False

    def __init__(self, table: RequestTable, until_ns: int = NEVER_NS) -> None:
        self.table = table
        self.count = int(np.searchsorted(table.arrival_ns, until_ns, side="right"))
        """Requests to send."""
        self.sent = 0

    def start(self, env: SimClock, make: RequestFactory, send: Send, ahead: bool) -> None:
        env.events.schedule(TableArrivals(self, env.events, make, send, ahead), 0, CHANGES)

    def safe_until_ns(self) -> int:
        return int(self.table.arrival_ns[self.sent]) - 1 if self.sent < self.count else NEVER_NS

    def ended(self, request: Request, seen_ns: int) -> None:
        """No-op: an open loop does not listen."""


class TableArrivals(Call):
    """The next arrival of a table, and those behind it. Requests are created chunk by chunk."""

    def __init__(
        self, source: TableSource, events: EventQueue, make: RequestFactory, send: Send, ahead: bool
    ) -> None:
        super().__init__()
        self._source, self._events, self._make, self._send, self._ahead = source, events, make, send, ahead
        self._chunk: list[Request] = []
        self._place = 0
        """Index of the next request in the chunk."""

    def happen(self, now_ns: int) -> None:
        source = self._source
        while source.sent < source.count:
            if self._place == len(self._chunk):
                self._chunk = self._make(slice(source.sent, min(source.sent + CHUNK, source.count)))
                self._place = 0
            first = self._chunk[self._place]
            if first.arrival_ns > now_ns:
                self._events.schedule(self, first.arrival_ns)
                return
            together = self._chunk if self._ahead else [first]
            self._place += len(together)
            source.sent += len(together)
            self._send(together)
