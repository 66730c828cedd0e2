"""Index of the ready instances with the smallest load, updated incrementally.

Of unequal instances that is the load which the next request would make, in relation to their capacities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_py.cluster.routing.signals import Signals

if TYPE_CHECKING:
    from blis_py.cluster.instances.fleet import MemberState


class LeastLoad:
    """A tournament tree of instances by effective load. Each node holds the minimum load of the instances
    below it and how many have it; node 1 is the root, and the children of node i are 2 i and 2 i + 1."""

    def __init__(self, signals: Signals) -> None:
        signals.track_moves()
        self._signals = signals
        self._plays: list[bool] = []
        """Whether each instance is ready."""
        self._leaves = 1
        """A power of two, so that leaves are in index order."""
        self._least = [_NO_LOAD, _NO_LOAD]
        self._ties = [0, 1]
        signals.follow(self._change)

    def _change(self, index: int, state: MemberState) -> None:
        if state == "added":
            self._plays.append(False)
            if index == self._leaves:
                self._grow()
        elif state == "ready":
            self._plays[index] = True
            self._move(index, self._load(index))
        else:
            self._plays[index] = False
            self._move(index, _NO_LOAD)

    def _load(self, index: int) -> int:
        signals = self._signals
        weights = signals.weights
        if weights is None:
            return signals.load[index]
        return round((signals.load[index] + 1) * _SCALE / weights[index])

    def _grow(self) -> None:
        """Double the leaves and rebuild the tree."""
        loads, leaves = self._least[self._leaves :], 2 * self._leaves
        self._leaves = leaves
        self._least = [_NO_LOAD] * (2 * leaves)
        self._ties = [0] * leaves + [1] * leaves
        for index, load in enumerate(loads):
            self._move(index, load)

    def ties(self) -> int:
        """Number of instances with the smallest load."""
        signals = self._signals
        moved = signals.moved
        if moved:
            signals.moved = []
            for index in moved:
                if self._plays[index]:
                    self._move(index, self._load(index))
        return self._ties[1]

    def tied(self, number: int) -> int:
        """One of these instances, counted from 0 in index order; call after `ties`."""
        least, ties, node = self._least, self._ties, 1
        while node < self._leaves:
            node *= 2
            if least[node] != least[1]:
                node += 1
            elif number >= ties[node] and least[node + 1] == least[1]:
                number -= ties[node]
                node += 1
        return node - self._leaves

    def _move(self, index: int, load: int) -> None:
        least, ties = self._least, self._ties
        node = self._leaves + index
        if least[node] == load:
            return
        least[node] = load
        while node > 1:
            node >>= 1
            left, right = least[2 * node], least[2 * node + 1]
            if left == right:
                load, count = left, ties[2 * node] + ties[2 * node + 1]
            elif left < right:
                load, count = left, ties[2 * node]
            else:
                load, count = right, ties[2 * node + 1]
            if least[node] == load and ties[node] == count:
                return
            least[node], ties[node] = load, count


_SCALE = 1 << 20
"""Unit of loads in relation to capacities."""
_NO_LOAD = 1 << 60
"""Load of an absent instance."""
