"""Fairness among tenants whose requests wait at the gateway with the same priority.

A policy is a class and one line in `FAIRNESS_POLICIES`, or an entry point of a package that is installed:

    [project.entry-points."blis_py.fairness_policies"]
    by-weight = "my_package:ByWeight"
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

from blis_py.cluster.extensions import named
from blis_py.cluster.ingress.dispatch_order import Waiting


class Fairness(Protocol):
    """The waiting requests of one priority. `key` orders those of one tenant."""

    def add(self, waiting: Waiting) -> None:
        """Add a request."""
        ...

    def head(self) -> Waiting:
        """The next request, without side effects. The queue must not be empty."""
        ...

    def remove(self, waiting: Waiting, served: bool) -> None:
        """Remove a request.

        Args:
            served: it leaves because it was next.
        """
        ...


MakeFairness = Callable[[], Fairness]


class Flow:
    """Requests ordered by key, ties in the order of entry. Removed entries are dropped lazily."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Waiting]] = []
        self.count = 0
        """Number of entries not removed."""

    def add(self, waiting: Waiting) -> None:
        """Add a request."""
        heappush(self._heap, (waiting.key, waiting.number, waiting))
        self.count += 1

    def head(self) -> Waiting:
        """The first request; there must be one."""
        heap = self._heap
        while heap[0][2].gone:
            heappop(heap)
        return heap[0][2]


class GlobalStrict(Flow):
    """The first request by key, regardless of tenant."""

    def remove(self, waiting: Waiting, served: bool) -> None:
        """Remove a request."""
        self.count -= 1


class RoundRobinFairness:
    """Tenants in turn, in the order of their names."""

    def __init__(self) -> None:
        self._flows: dict[str, Flow] = {}
        self._names: list[str] = []
        """Names of the waiting tenants, sorted."""
        self._last = ""
        """Name of the tenant served last."""

    def add(self, waiting: Waiting) -> None:
        """Add a request."""
        flow = self._flows.setdefault(waiting.tenant, Flow())
        if not flow.count:
            insort(self._names, waiting.tenant)
        flow.add(waiting)

    def head(self) -> Waiting:
        """The first request of the tenant after the one served last."""
        place = bisect_right(self._names, self._last)
        return self._flows[self._names[place % len(self._names)]].head()

    def remove(self, waiting: Waiting, served: bool) -> None:
        """Remove a request."""
        flow = self._flows[waiting.tenant]
        flow.count -= 1
        if not flow.count:
            self._names.remove(waiting.tenant)
            del self._flows[waiting.tenant]
        if served:
            self._last = waiting.tenant


FAIRNESS_POLICIES: dict[str, MakeFairness] = {
    "global-strict": GlobalStrict,
    "round-robin": RoundRobinFairness,
}
"""Name -> factory, called once per priority. Packages can add more."""

FAIRNESS_GROUP = "blis_py.fairness_policies"
"""Entry point group of fairness policies."""


def fairness_policy(name: str) -> MakeFairness:
    """The fairness policy of that name."""
    return named(FAIRNESS_POLICIES, FAIRNESS_GROUP, name, "fairness policy")
