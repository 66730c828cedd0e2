"""Routing: which instance a request is dispatched to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from blis_py.cluster.instance import Instance


class Signals:
    """What the router knows of the instances' load.

    The router counts by itself what it has dispatched and not seen end (`in_flight`, always
    current). Queue depth and batch size come from the instances and are refreshed when read, once
    they are `refresh_ns` old; before the first refresh they read as zero.
    """

    def __init__(self, instances: Sequence[Instance], refresh_ns: int) -> None:
        self._instances = instances
        self._refresh_ns = refresh_ns
        self._read_at_ns = 0
        self._reported = [0] * len(instances)

    def loads(self, now_ns: int) -> list[int]:
        """Effective load of each instance: waiting + running (as last reported) + in flight."""
        if now_ns - self._read_at_ns >= self._refresh_ns:
            self._read_at_ns = now_ns
            self._reported = [i.queue_depth(now_ns) + i.batch_size for i in self._instances]
        return [seen + i.in_flight for seen, i in zip(self._reported, self._instances, strict=True)]


class Router(Protocol):
    """Picks an instance by index."""

    def __call__(self, now_ns: int) -> int: ...


def round_robin(instances: Sequence[Instance], signals: Signals, rng: np.random.Generator) -> Router:
    """Each instance in turn."""
    turn = -1

    def route(now_ns: int) -> int:
        nonlocal turn
        turn = turn + 1 if turn + 1 < len(instances) else 0
        return turn

    return route


def least_loaded(instances: Sequence[Instance], signals: Signals, rng: np.random.Generator) -> Router:
    """The instance with the smallest effective load; ties at random."""

    def route(now_ns: int) -> int:
        loads = signals.loads(now_ns)
        least = min(loads)
        if loads.count(least) == 1:
            return loads.index(least)
        ties = [i for i, load in enumerate(loads) if load == least]
        return ties[int(rng.integers(len(ties)))]

    return route


ROUTING_POLICIES: dict[str, Callable[[Sequence[Instance], Signals, np.random.Generator], Router]] = {
    "round-robin": round_robin,
    "least-loaded": least_loaded,
}
