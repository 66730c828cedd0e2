"""Instance state as seen from outside: by routers and every other policy that decides about requests.

Every signal is as stale as in a real cluster. What the router counts itself, the requests in flight, is
always current. What instances report (queue depth, batch size and KV use) comes from the latest report, and
the contents of their prefix caches from the latest report of these (`blis_py.cluster.routing.prefixes`). A
report is made on a read if the previous one is too old; before the first one everything reads as zero.
Without reads there is no work, and a report costs only what has changed since the previous one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from blis_py.cluster.instances.dirty_set import DirtySet
from blis_py.cluster.routing.prefixes import PrefixReports
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.cluster.time.wakeups import WakeupQueue

if TYPE_CHECKING:
    from blis_py.cluster.instances.fleet import Follower, Membership, MemberState


class Signals:
    """The externally visible state of the instances; call `look` before reading.

    Args:
        refresh_ns: age up to which a report is still used.
        cache_delay_ns: the same for the contents of prefix caches.
    """

    def __init__(
        self,
        fleet: Membership,
        refresh_ns: int,
        cache_delay_ns: int,
        wakeups: WakeupQueue,
        lookahead: Lookahead,
    ) -> None:
        self.count = 0
        """Number of instances so far: the length of every list by index."""
        self.ready = fleet.ready
        """Indices of the instances to which requests are dispatched, ascending; changes with the fleet."""
        self.block_size = fleet.cluster.block_size
        """Tokens per KV block of the instances."""
        self.in_flight: list[int] = []
        """Requests sent to each instance that have not ended."""
        self.total_in_flight = 0
        """Requests in flight at all instances together."""
        self.queue_depth: list[int] = []
        self.batch_size: list[int] = []
        self.kv_utilization: list[float] = []
        """Share of its KV blocks in use. Zero unless `watch_kv` was called."""
        largest = max([pool.weight for pool in fleet.pools])
        unequal = min([pool.weight for pool in fleet.pools]) < largest
        self.weights: list[float] | None = [] if unequal else None
        """Capacity of each instance as a share of the largest one's; None = all are alike."""
        self._largest_weight = largest
        self.load: list[int] = []
        """Effective load: waiting and running as last reported, plus in flight."""
        self.reports = 0
        """Number of reports and fleet changes so far."""
        self.looks = 0
        """Number of looks so far."""
        self.reported_ns = 0
        """Time of the latest report."""
        self.moved: list[int] = []
        """Instances whose load may have changed since the list was last emptied; kept after `track_moves`."""
        self._fleet = fleet
        self._instances = fleet.instances
        self.refresh_ns, self._cache_delay_ns = refresh_ns, cache_delay_ns
        self._wakeups, self._lookahead = wakeups, lookahead
        self._watches = self._watches_kv = self._tracks_moves = False
        self._noted, self._to_report = DirtySet(), DirtySet()
        """Instances that changed since the latest look, and since the latest report."""
        self._prefixes: PrefixReports | None = None
        fleet.follow(self._change)

    @property
    def all_ready(self) -> bool:
        """Whether every instance so far is ready."""
        return len(self.ready) == self.count

    # -- membership --------------------------------------------------------------------------------

    def follow(self, follower: Follower) -> None:
        """See `Fleet.follow`; the signals themselves are updated first."""
        self._fleet.follow(follower)

    def _change(self, index: int, state: MemberState) -> None:
        """Handle an instance that is added, ready, draining or gone."""
        self.reports += 1
        if state == "added":
            self._add(index)
        elif state == "gone":
            self.total_in_flight -= self.in_flight[index]
            for known in (self.in_flight, self.queue_depth, self.batch_size, self.load):
                known[index] = 0
            self.kv_utilization[index] = 0.0

    def _add(self, index: int) -> None:
        self.count += 1
        for known in (self.in_flight, self.queue_depth, self.batch_size, self.load):
            known.append(0)
        self.kv_utilization.append(0.0)
        if self.weights is not None:
            self.weights.append(self._fleet.pool_of(index).weight / self._largest_weight)
        self._noted.grow()
        self._to_report.grow()
        if self._watches and self._fleet.covers(index):
            self._instances[index].watch(self._noted, index)

    # -- subscriptions -----------------------------------------------------------------------------

    def watch(self) -> None:
        """Enable tracking of changes; needed before `look`."""
        self._watches = True
        for index, instance in enumerate(self._instances):
            if self._fleet.covers(index):
                instance.watch(self._noted, index)

    def ring(self, bell: Callable[[], None]) -> None:
        """Set a callback for the first change of an instance after the latest look."""
        self._noted.ring(bell)

    def watch_kv(self) -> None:
        """Enable `kv_utilization`."""
        self._watches_kv = True

    def watch_prefixes(self) -> PrefixReports:
        """The contents of the instances' prefix caches, as last reported."""
        if self._prefixes is None:
            self._prefixes = PrefixReports(self._fleet, self._cache_delay_ns)
        return self._prefixes

    def track_moves(self) -> None:
        """Enable `moved`, which the caller empties."""
        self._tracks_moves = True

    # -- looking -------------------------------------------------------------------------------------

    def look(self, now_ns: int) -> None:
        """Bring all signals up to date. Time must not decrease between calls."""
        self.look_at_load(now_ns)
        if self._prefixes is not None:
            self._prefixes.look(now_ns)

    def look_at_load(self, now_ns: int) -> None:
        """The same without the contents of prefix caches."""
        self._lookahead.narrow(now_ns - 1)
        self._wakeups.pass_until(now_ns - 1)
        self.looks += 1
        for index in self._noted.take():
            self._to_report.add(index)
            if self._prefixes is not None:
                self._prefixes.note(index)
            self._count(index)
        if now_ns - self.reported_ns >= self.refresh_ns:
            self._report(now_ns)

    def _count(self, index: int) -> None:
        """Update the router's own counts."""
        in_flight = self._instances[index].in_flight
        change = in_flight - self.in_flight[index]
        if change:
            self.in_flight[index] = in_flight
            self.total_in_flight += change
            self.load[index] += change
            if self._tracks_moves:
                self.moved.append(index)

    def _report(self, now_ns: int) -> None:
        self.reported_ns = now_ns
        self.reports += 1
        for index in self._to_report.take():
            instance = self._instances[index]
            queued, running = instance.queue_depth(now_ns), instance.batch_size
            change = queued + running - self.queue_depth[index] - self.batch_size[index]
            self.queue_depth[index], self.batch_size[index] = queued, running
            if change:
                self.load[index] += change
                if self._tracks_moves:
                    self.moved.append(index)
            if self._watches_kv:
                self.kv_utilization[index] = instance.kv_utilization(now_ns)
            if instance.expects or (self._watches_kv and running):
                self._to_report.add(index)  # it changes continuously, without events
