"""Whose turn it is among the tenants that wait at the gateway with the same priority.

A policy is a class and one line in `FAIRNESS_POLICIES`, or an entry point of a package that is installed:

    [project.entry-points."blis_py.fairness_policies"]
    by-weight = "my_package:ByWeight"
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

from blis_py.cluster.dispatch_order import Waiting
from blis_py.cluster.extensions import named


class Fairness(Protocol):
    """The waiting requests of one priority. `key` says in which order those of one tenant go."""

    def add(self, waiting: Waiting) -> None:
        """One more."""
        ...

    def head(self) -> Waiting:
        """Whose turn it is; asking changes nothing. Somebody waits."""
        ...

    def remove(self, waiting: Waiting, served: bool) -> None:
        """It is gone.

        Args:
            served: it was its turn.
        """
        ...


MakeFairness = Callable[[], Fairness]


class Flow:
    """Requests by their key, those first that came first. What has gone stays until it comes up."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Waiting]] = []
        self.count = 0
        """Of those that have not gone."""

    def add(self, waiting: Waiting) -> None:
        """One more."""
        heappush(self._heap, (waiting.key, waiting.number, waiting))
        self.count += 1

    def head(self) -> Waiting:
        """The first; there is one."""
        heap = self._heap
        while heap[0][2].gone:
            heappop(heap)
        return heap[0][2]


class GlobalStrict(Flow):
    """Whoever is first, of whatever tenant."""

    def remove(self, waiting: Waiting, served: bool) -> None:
        """It is gone."""
        self.count -= 1


class RoundRobin:
    """Tenants take turns, in the order of their names."""

    def __init__(self) -> None:
        self._flows: dict[str, Flow] = {}
        self._names: list[str] = []
        """Of those that wait, in order."""
        self._last = ""
        """Who had the latest turn."""

    def add(self, waiting: Waiting) -> None:
        """One more."""
        flow = self._flows.setdefault(waiting.tenant, Flow())
        if not flow.count:
            insort(self._names, waiting.tenant)
        flow.add(waiting)

    def head(self) -> Waiting:
        """Of the tenant behind the one that had the latest turn."""
        place = bisect_right(self._names, self._last)
        return self._flows[self._names[place % len(self._names)]].head()

    def remove(self, waiting: Waiting, served: bool) -> None:
        """It is gone."""
        flow = self._flows[waiting.tenant]
        flow.count -= 1
        if not flow.count:
            self._names.remove(waiting.tenant)
            del self._flows[waiting.tenant]
        if served:
            self._last = waiting.tenant


FAIRNESS_POLICIES: dict[str, MakeFairness] = {
    "global-strict": GlobalStrict,
    "round-robin": RoundRobin,
}
"""Name -> what makes one for each priority. More of them can be installed."""

FAIRNESS_GROUP = "blis_py.fairness_policies"
"""Of entry points."""


def fairness_policy(name: str) -> MakeFairness:
    """The fairness policy of that name."""
    return named(FAIRNESS_POLICIES, FAIRNESS_GROUP, name, "fairness policy")
