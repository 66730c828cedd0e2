"""A view of a fleet restricted to some pools, for their dispatcher."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Sequence
from functools import partial

from blis_py.cluster.instances.fleet import Fleet, Follower, MemberState
from blis_py.cluster.topology import Pool


class FleetView:
    """A fleet in which instances of other pools are never ready; indices are those of the fleet.

    Args:
        pools: names of the pools in view.
    """

    def __init__(self, fleet: Fleet, pools: Collection[str]) -> None:
        self.cluster, self.instances = fleet.cluster, fleet.instances
        self.ready: list[int] = []
        """Indices of the ready instances in view, ascending."""
        self._fleet, self._pools = fleet, frozenset(pools)
        fleet.follow(self._change)

    @property
    def now_ns(self) -> int:
        return self._fleet.now_ns

    @property
    def slots(self) -> int:
        """Requests that the ready instances in view can run at once, all together."""
        members = self._fleet.members
        return sum(members[index].pool.spec.scheduler.max_num_seqs for index in self.ready)

    @property
    def coming(self) -> bool:
        """Whether an instance in view has been added that is not ready yet."""
        return any(
            member.state is MemberState.ADDED and self.covers(member.index) for member in self._fleet.members
        )

    def covers(self, index: int) -> bool:
        """Whether an instance is in view."""
        return self._fleet.members[index].pool.name in self._pools

    def pool_of(self, index: int) -> Pool:
        """The pool of an instance, in view or not."""
        return self._fleet.pool_of(index)

    @property
    def pools(self) -> Sequence[Pool]:
        """The pools in view."""
        return [pool for pool in self.cluster.pools if pool.name in self._pools]

    def follow(self, follower: Follower) -> None:
        """Follow as by `Fleet.follow`; instances out of view are only reported as added."""
        self._fleet.follow(partial(self._pass_on, follower))

    def _pass_on(self, follower: Follower, index: int, state: MemberState) -> None:
        if state is MemberState.ADDED or self.covers(index):
            follower(index, state)

    def _change(self, index: int, state: MemberState) -> None:
        if not self.covers(index):
            return
        if state is MemberState.READY:
            insort(self.ready, index)
        elif state is MemberState.DRAINING:
            place = bisect_left(self.ready, index)
            if place < len(self.ready) and self.ready[place] == index:
                del self.ready[place]
