"""Continuation of requests after a visit to an instance has ended.

Without an outlet a request is finished when its visit ends. An outlet may hand it over to another instance:
through a link to one of another pool (prefill to decode), or to one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from blis_py.cluster.time.lookahead import NOT_AT_ALL_NS
from blis_py.core.request import Request
from blis_py.metrics.visits import Onward


class Outlet(Protocol):
    """Continuation of requests whose visit to an instance of a pool has ended."""

    def enters(self, request: Request) -> None:
        """Begin a visit: called when the request is dispatched to an instance of the pool.

        The visit may get a limit of its own, such as `max_tokens` 1 where only the prompt is computed.
        """
        ...

    def way_on(self, request: Request) -> Onward | None:
        """Continuation of a request whose visit ends now; None if it is finished."""
        ...

    def take(self, requests: Sequence[Request], end_ns: int) -> None:
        """Take over requests that continue, in the order in which their visits ended.

        Their visits are closed; `Request.next_visit`, `Recorder.revisit` and a dispatcher begin the next.

        Args:
            end_ns: the end of the step that was their last here; never before the time of the event queue.
        """
        ...


class NoLookahead:
    """Lookahead source of a cluster with outlets: a visit may begin anywhere at any time."""

    def safe_until_ns(self) -> int:
        """See `blis_py.cluster.time.lookahead.Part`."""
        return NOT_AT_ALL_NS
