"""When sleeping instances go on: who is first, under SimPy's queue of events.

Nobody sees what passes before the outlook ends. So only the first of many wakings is an event of SimPy's;
the others follow at once, and its clock stands still.
"""

from __future__ import annotations

from blis_py.cluster.events import STEP_ENDS, Call, EventQueue
from blis_py.cluster.outlook import Outlook
from blis_py.core.request import NEVER_NS


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

    def __init__(self, events: EventQueue, outlook: Outlook) -> None:
        self._events = events
        self._outlook = outlook
        self._sleepers: list[Sleeper] = []
        self._first: list[Sleeper] = []
        """A tournament: who wakes first of all below each node. Node 1 is above everybody, node i above 2 i
        and 2 i + 1; the second half of the list are the sleepers themselves."""
        self._call: Call | None = None
        """The scheduled call for the first sleeper."""
        self._call_ns = NEVER_NS
        self._passing = False
        self._woken_ns, self._woken_place = -1, -1
        """Who was woken last, and when."""

    def add(self, sleeper: Sleeper) -> int:
        """One more; returns its number."""
        self._sleepers.append(sleeper)
        return len(self._sleepers) - 1

    def set(self, sleeper: Sleeper, time_ns: int) -> None:
        """The sleeper wakes then, and not at the time that was set before."""
        sleeper.wakes_ns = time_ns
        self._play(sleeper)
        if time_ns < self._call_ns and not self._passing:
            self._schedule(time_ns)

    def has_passed(self, sleeper: Sleeper, time_ns: int) -> bool:
        """Whether its turn at that time is over, since somebody behind it has been woken then."""
        return self._woken_ns == time_ns and sleeper.place < self._woken_place

    def pass_until(self, time_ns: int) -> None:
        """Everybody wakes whose time is not later."""
        if self._first:
            time_ns = min(time_ns, NEVER_NS - 1)
            self._passing = True
            while self._first[1].wakes_ns <= time_ns:
                self._wake(self._first[1])
            self._passing = False
            if self._first[1].wakes_ns < self._call_ns:
                self._schedule(self._first[1].wakes_ns)

    def _called(self, now_ns: int) -> None:
        self._call_ns = NEVER_NS
        if self._first[1].wakes_ns <= now_ns:
            self._passing = True
            self._wake(self._first[1])  # one alone: what it leads to may come before the others of this time
            self._passing = False
        self.pass_until(self._outlook.until_ns)

    def _wake(self, sleeper: Sleeper) -> None:
        """It is the first of all. Most set their next time while awake; only of the others is it told
        that they wait for nothing, which everybody who compares with them finds anyway."""
        time_ns, sleeper.wakes_ns = sleeper.wakes_ns, NEVER_NS
        self._woken_ns, self._woken_place = time_ns, sleeper.place
        sleeper.wake(time_ns)
        if sleeper.wakes_ns == NEVER_NS:
            self._play(sleeper)

    def _play(self, sleeper: Sleeper) -> None:
        """Its time has changed: its matches are played again, as long as that changes who wins them."""
        first, count = self._first, len(self._sleepers)
        if len(first) != 2 * count:
            self._first = first = [sleeper] * count + self._sleepers
            for node in range(count - 1, 0, -1):
                first[node] = _sooner(first[2 * node], first[2 * node + 1])
            return
        node = (count + sleeper.place) >> 1
        while node:
            winner = _sooner(first[2 * node], first[2 * node + 1])
            if first[node] is winner and winner is not sleeper:
                return
            first[node] = winner
            node >>= 1

    def _schedule(self, time_ns: int) -> None:
        if self._call is not None:
            self._call.cancel()
        self._call, self._call_ns = self._events.call_at(time_ns, self._called, STEP_ENDS), time_ns


def _sooner(one: Sleeper, other: Sleeper) -> Sleeper:
    if one.wakes_ns == other.wakes_ns:
        return one if one.place < other.place else other
    return one if one.wakes_ns < other.wakes_ns else other
