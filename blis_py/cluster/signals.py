"""What is known of the instances outside of them: by routers, and by whoever else decides about requests.

Every signal is as old as it would be in a real cluster. What the router counts by itself, the requests in
flight, is always current. What instances report, queue depth, batch size and KV use, comes from the latest
report, and what their prefix caches hold from the latest one about these (`blis_py.cluster.prefixes`).
A report is made when somebody looks and the one before it has become too old; before the first one
everything reads as zero. So nothing happens while nobody looks, and a report costs what has changed since
the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blis_py.cluster.instance import Instance
from blis_py.cluster.marks import Marks
from blis_py.cluster.outlook import Outlook
from blis_py.cluster.prefixes import PrefixReports
from blis_py.cluster.timeline import Timeline


class Signals:
    """The instances as others see them; look before you read.

    Args:
        refresh_ns: age up to which a report is good enough.
        cache_delay_ns: the same for the content of prefix caches.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        refresh_ns: int,
        cache_delay_ns: int,
        timeline: Timeline,
        outlook: Outlook,
    ) -> None:
        self.count = count = len(instances)
        """Instances."""
        self.block_size = instances[0].block_size
        """Tokens of their KV blocks."""
        self.in_flight = [0] * count
        """Requests sent to each that have not ended."""
        self.total_in_flight = 0
        """To all of them."""
        self.queue_depth = [0] * count
        self.batch_size = [0] * count
        self.kv_utilization = [0.0] * count
        """Share of its KV blocks in use. Zero unless somebody has said `watch_kv`."""
        self.load = [0] * count
        """Effective load: waiting and running, as last reported, and in flight."""
        self.reports = 0
        """How often there has been a report."""
        self.looks = 0
        """How often somebody has looked."""
        self.reported_ns = 0
        """When the latest report was made."""
        self.moved: list[int] = []
        """Whose load may have changed since somebody emptied the list; kept if `track_moves`."""
        self._instances = instances
        self.refresh_ns, self._cache_delay_ns = refresh_ns, cache_delay_ns
        self._timeline, self._outlook = timeline, outlook
        self._watches_kv = self._tracks_moves = False
        self._noted, self._to_report = Marks(count), Marks(count)
        """Where something has happened since the latest look, and the latest report."""
        self._prefixes: PrefixReports | None = None

    # -- who wants to know what --------------------------------------------------------------------

    def watch(self) -> None:
        """Somebody is going to look."""
        for index, instance in enumerate(self._instances):
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
            self._prefixes = PrefixReports(self._instances, self._cache_delay_ns)
        return self._prefixes

    def track_moves(self) -> None:
        """Somebody empties `moved`."""
        self._tracks_moves = True
        self.moved = list(range(self.count))

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
