"""Signals that a test shows to a router, in place of `Signals` and `PrefixReports`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from blis_py.cluster.instances.fleet import Follower, MemberState
from blis_py.core.request import Request


class ShownSignals:
    """What instances report, by instance; all are ready."""

    block_size = 16
    weights: list[float] | None = None

    def __init__(self, count: int) -> None:
        self.count = count
        self.ready, self.all_ready = list(range(count)), True
        self.reports = self.looks = 0
        self.moved: list[int] = []
        self.load = [0] * count

    def report(
        self,
        queue_depth: Sequence[int],
        batch_size: Sequence[int],
        kv_utilization: Sequence[float],
        in_flight: Sequence[int],
        cached: Sequence[int],
    ) -> None:
        """A new report of every instance."""
        self.reports, self.looks = self.reports + 1, self.looks + 1
        self.queue_depth, self.batch_size = list(queue_depth), list(batch_size)
        self.kv_utilization, self.in_flight = list(kv_utilization), list(in_flight)
        self.cached = list(cached)
        self.load = [sum(parts) for parts in zip(queue_depth, batch_size, in_flight, strict=True)]
        self.moved = list(range(self.count))

    def track_moves(self) -> None: ...

    def follow(self, follower: Follower) -> None:
        for index in self.ready:
            follower(index, MemberState.ADDED)
            follower(index, MemberState.READY)

    def watch_kv(self) -> None: ...

    def watch_prefixes(self) -> Self:
        return self

    def held(self, request: Request) -> list[tuple[int, int]]:
        """Instances, as bits, with at least so many cached blocks."""
        levels = sorted(set(self.cached) - {0})
        return [(sum(1 << i for i, n in enumerate(self.cached) if n >= blocks), blocks) for blocks in levels]
