"""In which order requests leave the gateway queue.

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
        """When it came."""
        self.number = number
        """Larger is later."""
        self.band = band
        """Its priority on the cluster's side; larger is more urgent."""
        self.tenant = tenant
        self.target_ns = target_ns
        """How long it should wait at most; -1 = nobody says."""
        self.key = 0
        self.gone = False
        """It has left the queue."""


Key = Callable[[Waiting], int]
"""The smallest goes first; of equals whoever came first."""


@dataclass(frozen=True, slots=True)
class DispatchOrder:
    """Who of those that may be dispatched goes first."""

    key: Key
    """Among the requests of one priority and tenant."""
    by_priority: bool = True
    """The more urgent first; else whoever has the smallest key, of whatever priority."""


def by_arrival(waiting: Waiting) -> int:
    """Whoever came first."""
    return waiting.number


def by_target(waiting: Waiting) -> int:
    """Whose SLO target is to be missed first; those without one come last."""
    return NEVER_NS if waiting.target_ns < 0 else waiting.since_ns + waiting.target_ns


def by_patience(waiting: Waiting) -> int:
    """Whose client gives up first; those whose clients never do come last."""
    return NEVER_NS if waiting.request.deadline_ns < 0 else waiting.request.deadline_ns


DISPATCH_ORDERS: dict[str, DispatchOrder] = {
    "fifo": DispatchOrder(by_arrival, by_priority=False),
    "priority": DispatchOrder(by_arrival),
    "slo-deadline": DispatchOrder(by_target),
    "edf": DispatchOrder(by_patience),
}
"""More of them can be installed."""

ORDER_GROUP = "blis_py.dispatch_orders"
"""Of entry points."""


def dispatch_order(name: str) -> DispatchOrder:
    """The order of that name."""
    return named(DISPATCH_ORDERS, ORDER_GROUP, name, "dispatch order")
