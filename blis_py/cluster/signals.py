"""What is known of the instances outside of them: by routers, and by whoever else decides about requests.

Every signal is as old as it would be in a real cluster. What the router counts by itself, the requests in
flight, is always current. What instances report, queue depth, batch size and KV use, comes from the latest
report, and what their prefix caches hold from the latest one about these (`blis_py.cluster.prefixes`).
A report is made when somebody looks and the one before it has become too old; before the first one
everything reads as zero. So nothing happens while nobody looks, and a report costs what has changed since
the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from blis_py.cluster.marks import Marks
from blis_py.cluster.outlook import Outlook
from blis_py.cluster.prefixes import PrefixReports
from blis_py.cluster.timeline import Timeline

if TYPE_CHECKING:
    from blis_py.cluster.fleet import Follower, Membership, MemberState


class Signals:
    """The instances as others see them; look before you read.

    Args:
        refresh_ns: age up to which a report is good enough.
        cache_delay_ns: the same for the content of prefix caches.
    """

    def __init__(
        self, fleet: Membership, refresh_ns: int, cache_delay_ns: int, timeline: Timeline, outlook: Outlook
    ) -> None:
        self.count = 0
        """Instances that there have been so far: the length of every list by index."""
        self.ready = fleet.ready
        """Indices of the instances to which requests are dispatched, ascending; it changes with the fleet."""
        self.block_size = fleet.cluster.block_size
        """Tokens of their KV blocks."""
        self.in_flight: list[int] = []
        """Requests sent to each that have not ended."""
        self.total_in_flight = 0
        """To all of them."""
        self.queue_depth: list[int] = []
        self.batch_size: list[int] = []
        self.kv_utilization: list[float] = []
        """Share of its KV blocks in use. Zero unless somebody has said `watch_kv`."""
        self.load: list[int] = []
        """Effective load: waiting and running, as last reported, and in flight."""
        self.reports = 0
        """How often there has been a report, or a change of the fleet."""
        self.looks = 0
        """How often somebody has looked."""
        self.reported_ns = 0
        """When the latest report was made."""
        self.moved: list[int] = []
        """Whose load may have changed since somebody emptied the list; kept if `track_moves`."""
        self._fleet = fleet
        self._instances = fleet.instances
        self.refresh_ns, self._cache_delay_ns = refresh_ns, cache_delay_ns
        self._timeline, self._outlook = timeline, outlook
        self._watches = self._watches_kv = self._tracks_moves = False
        self._noted, self._to_report = Marks(), Marks()
        """Where something has happened since the latest look, and the latest report."""
        self._prefixes: PrefixReports | None = None
        fleet.follow(self._change)

    @property
    def all_ready(self) -> bool:
        """Whether every instance that there has been is ready."""
        return len(self.ready) == self.count

    # -- membership --------------------------------------------------------------------------------

    def follow(self, follower: Follower) -> None:
        """See `Fleet.follow`; the signals themselves have followed before."""
        self._fleet.follow(follower)

    def _change(self, index: int, state: MemberState) -> None:
        """An instance is added, ready, draining or gone."""
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
        self._noted.grow()
        self._to_report.grow()
        if self._watches and self._fleet.covers(index):
            self._instances[index].watch(self._noted, index)

    # -- who wants to know what --------------------------------------------------------------------

    def watch(self) -> None:
        """Somebody is going to look."""
        self._watches = True
        for index, instance in enumerate(self._instances):
            if self._fleet.covers(index):
                instance.watch(self._noted, index)

    def ring(self, bell: Callable[[], None]) -> None:
        """Calls somebody when something happens at an instance, for the first time since the latest look."""
        self._noted.ring(bell)

    def watch_kv(self) -> None:
        """Somebody reads `kv_utilization`."""
        self._watches_kv = True

    def watch_prefixes(self) -> PrefixReports:
        """What the instances' prefix caches hold, as last reported."""
        if self._prefixes is None:
            self._prefixes = PrefixReports(self._fleet, self._cache_delay_ns)
        return self._prefixes

    def track_moves(self) -> None:
        """Somebody empties `moved`."""
        self._tracks_moves = True

    # -- looking -------------------------------------------------------------------------------------

    def look(self, now_ns: int) -> None:
        """Brings everything up to what is known now. Not earlier than the look before."""
        self.look_at_load(now_ns)
        if self._prefixes is not None:
            self._prefixes.look(now_ns)

    def look_at_load(self, now_ns: int) -> None:
        """The same of all but what prefix caches hold."""
        self._outlook.narrow(now_ns - 1)
        self._timeline.pass_until(now_ns - 1)
        self.looks += 1
        for index in self._noted.take():
            self._to_report.add(index)
            if self._prefixes is not None:
                self._prefixes.note(index)
            self._count(index)
        if now_ns - self.reported_ns >= self.refresh_ns:
            self._report(now_ns)

    def _count(self, index: int) -> None:
        """What the router knows by itself."""
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
                self._to_report.add(index)  # it changes by and by, and says nothing
