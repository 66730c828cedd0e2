"""Membership: the instances of a cluster, their pools and states, and notice of every change.

An instance's index identifies it for the whole run and is never reused. Requests are dispatched to ready
instances only; a draining instance finishes its requests, and is gone when it is empty.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from functools import partial
from typing import Protocol

from blis_py.cluster.instances.instance import Instance
from blis_py.cluster.instances.outlet import Outlet
from blis_py.cluster.time.fleet_events import FleetEvents
from blis_py.cluster.topology import Cluster, Pool
from blis_py.core.light_dataclass import dataclass
from blis_py.errors import InputError
from blis_py.metrics.record import InstanceRecord


class MemberState(StrEnum):
    ADDED = "added"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


@dataclass(slots=True)
class Member:
    """An instance of the fleet, as seen by the cluster."""

    index: int
    pool: Pool
    added_ns: int
    state: MemberState = MemberState.ADDED
    gone_ns: int | None = None
    """Time of departure; None if it lived to the end of the run."""


Follower = Callable[[int, MemberState], None]
"""Called with an instance's index and new state at every change."""


class Membership(Protocol):
    """The instances to which requests may be dispatched: a `Fleet`, or the visible part of one."""

    cluster: Cluster
    instances: list[Instance]
    """By index; empty after the run."""
    ready: list[int]
    """Indices of the ready instances, ascending."""

    @property
    def now_ns(self) -> int: ...

    @property
    def slots(self) -> int:
        """Requests that all ready instances together can run at once."""
        ...

    @property
    def coming(self) -> bool:
        """Whether an instance has been added that is not ready yet."""
        ...

    def covers(self, index: int) -> bool:
        """Whether an instance is in view."""
        ...

    def pool_of(self, index: int) -> Pool:
        """The pool of an instance, in view or not."""
        ...

    @property
    def pools(self) -> Sequence[Pool]:
        """The pools in view."""
        ...

    def follow(self, follower: Follower) -> None:
        """Report every change of state from now on, preceded by those that led to the present state."""
        ...


class Fleet:
    """The instances of a run. Its lists are live: they change with the fleet.

    Args:
        make: builds an instance of a pool.
    """

    def __init__(self, cluster: Cluster, make: Callable[[Pool], Instance], agenda: FleetEvents) -> None:
        self.cluster = cluster
        self.members: list[Member] = []
        """By index."""
        self.instances: list[Instance] = []
        """By index; empty after the run."""
        self.ready: list[int] = []
        """Indices of the ready instances, ascending."""
        self.slots: int = 0
        """Requests that all ready instances together can run at once."""
        self._make, self._fleet_events = make, agenda
        self._outlets: dict[str, Outlet] = {}
        self._followers: list[Follower] = []
        for pool in cluster.pools:
            for _ in range(pool.count):
                self.add(pool.name)

    def follow(self, follower: Follower) -> None:
        """Report every change of state from now on, preceded by those that led to the present state."""
        for member in self.members:
            follower(member.index, MemberState.ADDED)
            if member.state is not MemberState.ADDED:
                follower(member.index, member.state)
        self._followers.append(follower)

    @property
    def coming(self) -> bool:
        """Whether an instance has been added that is not ready yet."""
        return any(member.state is MemberState.ADDED for member in self.members)

    @property
    def now_ns(self) -> int:
        return self._fleet_events.now_ns

    def add(self, pool: str, ready_after_ns: int = 0) -> int:
        """Add an instance to a pool; returns its index.

        Args:
            ready_after_ns: start-up time: its GPUs are billed, but no request is dispatched to it.

        Raises:
            InputError: no such pool, or the run has begun without any event (`Simulation.call_at`).
        """
        self._fleet_events.require_used("Fleet.add")
        member = Member(len(self.members), self.cluster.pool(pool), self.now_ns)
        instance = self._make(member.pool)
        instance.outlet = self._outlets.get(pool)
        self.instances.append(instance)
        self.members.append(member)
        self._notify(member, MemberState.ADDED)
        if ready_after_ns:
            self._fleet_events.call_at(self.now_ns + ready_after_ns, partial(self._become_ready, member))
        else:
            self._become_ready(member, self.now_ns)
        return member.index

    @property
    def connected(self) -> Collection[str]:
        """Names of the pools with an outlet."""
        return self._outlets.keys()

    def connect(self, pool: str, outlet: Outlet) -> None:
        """Give the present and future instances of a pool an outlet.

        Raises:
            InputError: no such pool.
        """
        self._outlets[self.cluster.pool(pool).name] = outlet
        for member, instance in zip(self.members, self.instances, strict=True):
            if member.pool.name == pool:
                instance.outlet = outlet

    def drain(self, index: int) -> None:
        """Stop dispatching to an instance; it finishes its requests, and is gone.

        Raises:
            InputError: no such instance, it is draining or gone already, or the run has begun without any
                event (`Simulation.call_at`).
        """
        self._fleet_events.require_used("Fleet.drain")
        member = self.members[index] if 0 <= index < len(self.members) else None
        if member is None or member.state in (MemberState.DRAINING, MemberState.GONE):
            problem = "no such instance" if member is None else f"the instance is {member.state} already"
            raise InputError(problem, key="index", value=index)
        if member.state is MemberState.READY:
            self.ready.remove(index)
            self.slots -= member.pool.spec.scheduler.max_num_seqs
        self._notify(member, MemberState.DRAINING)
        instance = self.instances[index]
        if instance.is_idle:
            self._leave(member, self.now_ns)
        else:
            instance.when_idle(partial(self._leave, member))

    def enter_lives(self, records: list[InstanceRecord]) -> None:
        """Copy pools and life spans into the records of the instances."""
        for member, record in zip(self.members, records, strict=True):
            spec = member.pool.spec
            record.pool, record.gpus, record.price_per_hour = member.pool.name, spec.gpus, spec.price_per_hour
            record.added_ns, record.gone_ns = member.added_ns, member.gone_ns

    def covers(self, index: int) -> bool:
        """Whether an instance is in view: always; see `FleetView`."""
        return True

    def pool_of(self, index: int) -> Pool:
        """The pool of an instance."""
        return self.members[index].pool

    @property
    def pools(self) -> Sequence[Pool]:
        """All pools."""
        return self.cluster.pools

    def close(self) -> None:
        """Release the instances and the followers; member states remain."""
        self.instances.clear()
        self._followers.clear()

    def _become_ready(self, member: Member, now_ns: int) -> None:
        if member.state is MemberState.ADDED:  # unless it was drained before
            self.ready.insert(bisect_left(self.ready, member.index), member.index)
            self.slots += member.pool.spec.scheduler.max_num_seqs
            self._notify(member, MemberState.READY)

    def _leave(self, member: Member, now_ns: int) -> None:
        member.gone_ns = now_ns
        self._notify(member, MemberState.GONE)

    def _notify(self, member: Member, state: MemberState) -> None:
        member.state = state
        for follower in self._followers:
            follower(member.index, state)
