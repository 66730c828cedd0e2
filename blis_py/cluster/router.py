"""Routing: which instance a request is dispatched to.

A policy is a class and one line in `ROUTING_POLICIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from blis_py.core.request import Request


class Loaded(Protocol):
    """What the router may ask an instance."""

    in_flight: int

    def queue_depth(self, now_ns: int) -> int: ...

    @property
    def batch_size(self) -> int: ...


class Router(Protocol):
    """Picks an instance by index for a request dispatched now."""

    looks_at_load: bool
    """Whether the choice depends on the state of the instances, which is then looked at with every request.
    If not, it can be made ahead of time."""

    def __call__(self, request: Request, now_ns: int) -> int: ...


class Signals:
    """What the router knows of the instances' load.

    The router counts by itself what it has dispatched and not seen end (`in_flight`, always
    current). Queue depth and batch size come from the instances and are refreshed when read, once
    they are `refresh_ns` old; before the first refresh they read as zero.
    """

    def __init__(self, instances: Sequence[Loaded], refresh_ns: int) -> None:
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


class RoundRobin:
    """Each instance in turn."""

    looks_at_load = False

    def __init__(self, instances: Sequence[Loaded], signals: Signals, rng: np.random.Generator) -> None:
        self._last = len(instances) - 1
        self._turn = -1

    def __call__(self, request: Request, now_ns: int) -> int:
        self._turn = self._turn + 1 if self._turn < self._last else 0
        return self._turn


class LeastLoaded:
    """The instance with the smallest effective load; ties at random."""

    looks_at_load = True

    def __init__(self, instances: Sequence[Loaded], signals: Signals, rng: np.random.Generator) -> None:
        self._signals = signals
        self._rng = rng

    def __call__(self, request: Request, now_ns: int) -> int:
        loads = self._signals.loads(now_ns)
        least = min(loads)
        if loads.count(least) == 1:
            return loads.index(least)
        ties = [i for i, load in enumerate(loads) if load == least]
        return ties[int(self._rng.integers(len(ties)))]


MakeRouter = Callable[[Sequence[Loaded], Signals, np.random.Generator], Router]

ROUTING_POLICIES: dict[str, MakeRouter] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
}
