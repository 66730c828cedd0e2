"""The order in which requests leave the gateway queue.

An order is a line in `DISPATCH_ORDERS`, or an entry point of a package that is installed:

    [project.entry-points."blis_py.dispatch_orders"]
    shortest-first = "my_package:SHORTEST_FIRST"
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blis_py.cluster.extensions import named
from blis_py.core.request import NEVER_NS, Request


class Waiting:
    """A request in the gateway queue."""

    __slots__ = ("band", "gone", "key", "number", "request", "since_ns", "target_ns", "tenant")

    def __init__(
        self, request: Request, since_ns: int, number: int, band: int, tenant: str, target_ns: int
    ) -> None:
        self.request = request
        self.since_ns = since_ns
        """Time of entry."""
        self.number = number
        """Order of entry: larger is later."""
        self.band = band
        """Cluster-side priority; larger is more urgent."""
        self.tenant = tenant
        self.target_ns = target_ns
        """Target for its time in the queue; -1 = no target."""
        self.key = 0
        self.gone = False
        """Whether it has left the queue."""


Key = Callable[[Waiting], int]
"""Sort key: the smallest goes first, ties in the order of entry."""


@dataclass(frozen=True, slots=True)
class DispatchOrder:
    """Order of the requests that may be dispatched."""

    key: Key
    """Key among the requests of one priority and tenant."""
    by_priority: bool = True
    """Whether more urgent requests always go first; if not, the smallest key goes first regardless of
    priority."""


def by_arrival(waiting: Waiting) -> int:
    """Order of entry."""
    return waiting.number


def by_target(waiting: Waiting) -> int:
    """Earliest SLO target first; requests without a target last."""
    return NEVER_NS if waiting.target_ns < 0 else waiting.since_ns + waiting.target_ns


def by_patience(waiting: Waiting) -> int:
    """Earliest deadline first; requests without a deadline last."""
    return NEVER_NS if waiting.request.deadline_ns < 0 else waiting.request.deadline_ns


DISPATCH_ORDERS: dict[str, DispatchOrder] = {
    "fifo": DispatchOrder(by_arrival, by_priority=False),
    "priority": DispatchOrder(by_arrival),
    "slo-deadline": DispatchOrder(by_target),
    "edf": DispatchOrder(by_patience),
}
"""Name -> order. Packages can add more."""

ORDER_GROUP = "blis_py.dispatch_orders"
"""Entry point group of dispatch orders."""


def dispatch_order(name: str) -> DispatchOrder:
    """The dispatch order of that name."""
    return named(DISPATCH_ORDERS, ORDER_GROUP, name, "dispatch order")
