"""When sleeping instances go on: a queue of their times, under SimPy's queue of events.

Nobody sees what passes before the outlook ends. So only the first of many wakings is an event of SimPy's;
the others follow at once, and its clock stands still.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from simpy import Environment, Event

from blis_py.cluster.alarm import Alarm
from blis_py.cluster.outlook import Outlook
from blis_py.core.request import NEVER_NS

_INDEX_BITS: Final = 24
_INDEX: Final = (1 << _INDEX_BITS) - 1


class Sleeper:
    """Whoever can wait for a time."""

    def __init__(self, timeline: Timeline) -> None:
        self.wakes_ns = NEVER_NS
        """When."""
        self.place = timeline.add(self)
        """Its number there."""

    def wake(self, time_ns: int) -> None:
        """The time has come."""
        raise NotImplementedError


class Timeline:
    """Wakes sleepers in the order of their times; at equal times, in the order in which they were added.

    Whatever else SimPy has for the same nanosecond comes first: what arrives at the end of a step is seen by
    the next one.
    """

    def __init__(self, env: Environment, outlook: Outlook) -> None:
        self.env = env
        self._outlook = outlook
        self._sleepers: list[Sleeper] = []
        self._heap: list[int] = []
        """Time and sleeper as one number, which compares faster than two; some entries are stale."""
        self._alarm = Alarm(env)
        """The latest that was set; those before it do not count."""
        self._alarm_ns = NEVER_NS
        self._passing = False

    def add(self, sleeper: Sleeper) -> int:
        """One more; returns its number."""
        self._sleepers.append(sleeper)
        return len(self._sleepers) - 1

    def set(self, sleeper: Sleeper, time_ns: int) -> None:
        """The sleeper wakes then, and not at the time that was set before."""
        sleeper.wakes_ns = time_ns
        heappush(self._heap, time_ns << _INDEX_BITS | sleeper.place)
        if time_ns < self._alarm_ns and not self._passing:
            self._call_at(time_ns)

    def pass_until(self, time_ns: int) -> None:
        """Everybody wakes whose time is not later."""
        heap, last = self._heap, time_ns << _INDEX_BITS | _INDEX
        if heap and heap[0] <= last:
            self._passing = True
            while heap and heap[0] <= last:
                self._wake_next()
            self._passing = False
        self._call_for_next()

    def _called(self, event: Event) -> None:
        """SimPy's clock has come to the time of an alarm."""
        if event is not self._alarm:
            return
        self._alarm_ns = NEVER_NS
        heap, last = self._heap, int(self.env.now) << _INDEX_BITS | _INDEX
        self._passing = True
        while heap and heap[0] <= last and not self._wake_next():
            pass  # one alone: what it leads to may come before the others of this time
        self._passing = False
        self.pass_until(self._outlook.until_ns)

    def _wake_next(self) -> bool:
        """Whether the next entry was not stale."""
        entry = heappop(self._heap)
        time_ns, sleeper = entry >> _INDEX_BITS, self._sleepers[entry & _INDEX]
        if sleeper.wakes_ns != time_ns:
            return False
        sleeper.wakes_ns = NEVER_NS
        sleeper.wake(time_ns)
        return True

    def _call_for_next(self) -> None:
        heap, sleepers = self._heap, self._sleepers
        while heap and sleepers[heap[0] & _INDEX].wakes_ns != heap[0] >> _INDEX_BITS:
            heappop(heap)
        if heap and heap[0] >> _INDEX_BITS < self._alarm_ns:
            self._call_at(heap[0] >> _INDEX_BITS)

    def _call_at(self, time_ns: int) -> None:
        self._alarm, self._alarm_ns = Alarm(self.env), time_ns
        assert self._alarm.callbacks is not None
        self._alarm.callbacks.append(self._called)
        self._alarm.ring_at(time_ns)
