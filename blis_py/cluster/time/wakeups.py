"""Wake-up times of instances, beneath SimPy's event queue.

Until the lookahead ends no instance state is read. So only the first of many wake-ups is a SimPy event; the
others follow at once, while SimPy's clock stands still.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_py.cluster.time.events import Call, EventQueue
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.core.request import NEVER_NS

if TYPE_CHECKING:
    from mypy_extensions import i64


class Turn:
    """The turn of a wakeable in the queue of wake-ups. A class of its own, without subclasses: compiled code
    compares thousands of them."""

    def __init__(self, wakeable: Wakeable, place: int) -> None:
        self.wakeable = wakeable
        self.place = place
        """Index in that queue."""
        self.wakes_ns = NEVER_NS


class Wakeable:
    """An object woken at a simulated time."""

    def __init__(self, wakeups: WakeupQueue) -> None:
        self.turn = wakeups.add(self)

    @property
    def wakes_ns(self) -> int:
        """The wake-up time."""
        return self.turn.wakes_ns

    def wake(self, time_ns: int) -> None:
        """Resume at the wake-up time."""
        raise NotImplementedError


class _FirstWakeup(Call):
    """The call for the first wakeable."""

    def __init__(self, wakeups: WakeupQueue) -> None:
        super().__init__()
        self._wakeups = wakeups

    def happen(self, now_ns: int) -> None:
        self._wakeups.called(now_ns)


class WakeupQueue:
    """Queue of wakeables by time, ties in the order in which they were added.

    Other SimPy events of the same nanosecond come first: an arrival at the end of a step is seen by the next
    step.
    """

    def __init__(self, events: EventQueue, lookahead: Lookahead) -> None:
        self._events = events
        self._lookahead = lookahead
        self._turns: list[Turn] = []
        self._first: list[Turn] = []
        """A tournament tree: at each node the earliest wakeable below it. Node 1 is the root, the children of
        node i are 2 i and 2 i + 1, and the second half of the list holds the wakeables themselves."""
        self._call = _FirstWakeup(self)
        self._call_ns = NEVER_NS
        """The time for which it is scheduled."""
        self._passing = False
        self._woken_ns, self._woken_place = -1, -1
        """Time and index of the latest wake-up."""

    def add(self, wakeable: Wakeable) -> Turn:
        """Add a wakeable."""
        turn = Turn(wakeable, len(self._turns))
        self._turns.append(turn)
        return turn

    def set(self, wakeable: Wakeable, time_ns: int) -> None:
        """Set the wake-up time of a wakeable, replacing the previous one."""
        turn = wakeable.turn
        turn.wakes_ns = time_ns
        self._replay(turn)
        if time_ns < self._call_ns and not self._passing:
            self._schedule(time_ns)

    def has_passed(self, wakeable: Wakeable, time_ns: int) -> bool:
        """Whether its turn at that time has passed: a wakeable behind it has been woken then."""
        return self._woken_ns == time_ns and wakeable.turn.place < self._woken_place

    def precedes(self, wakeable: Wakeable, time_ns: int) -> bool:
        """Whether nothing precedes the turn at that time of the wakeable that is awake now."""
        if self._lookahead.none_ahead or self._events.earliest_ns <= time_ns:
            return False
        first, place = self._first, wakeable.turn.place
        node: i64 = len(self._turns) + place
        if len(first) <= node:
            return False
        while node > 1:
            other = first[node ^ 1]
            if other.wakes_ns < time_ns or (other.wakes_ns == time_ns and other.place < place):
                return False
            node >>= 1
        return True

    def pass_until(self, time_ns: int) -> None:
        """Wake every wakeable whose time is not later."""
        if self._first:
            time_ns = min(time_ns, NEVER_NS - 1)
            self._passing = True
            while self._first[1].wakes_ns <= time_ns:
                self._wake(self._first[1])
            self._passing = False
            if self._first[1].wakes_ns < self._call_ns:
                self._schedule(self._first[1].wakes_ns)

    def called(self, now_ns: int) -> None:
        """Wake the wakeables whose time has come, and those that need no event of their own."""
        self._call_ns = NEVER_NS
        if self._first[1].wakes_ns <= now_ns:
            self._passing = True
            self._wake(self._first[1])  # a single wakeable: its effects may precede the others of this time
            if not self._lookahead.none_ahead:
                self._pass_until_next()
            self._passing = False
        self.pass_until(self._lookahead.until_ns)

    def _pass_until_next(self) -> None:
        """Wake wakeables up to the next event of the queue, which need no event of their own."""
        events, lookahead = self._events, self._lookahead
        while True:
            turn = self._first[1]
            time_ns = turn.wakes_ns
            if time_ns > lookahead.until_ns:
                if time_ns >= events.earliest_ns or time_ns == NEVER_NS:
                    return
                if time_ns > events.now_ns:
                    events.now_ns = time_ns
            elif time_ns == NEVER_NS:
                return
            self._wake(turn)

    def _wake(self, turn: Turn) -> None:
        """Wake the first wakeable. Most set their next time meanwhile, which replays their matches; for the
        others this is done here. Comparisons in between read `NEVER_NS` from the wakeable itself."""
        time_ns, turn.wakes_ns = turn.wakes_ns, NEVER_NS
        if time_ns != self._woken_ns:
            self._woken_ns, self._woken_place = time_ns, turn.place
        elif turn.place > self._woken_place:
            self._woken_place = turn.place
        turn.wakeable.wake(time_ns)
        if turn.wakes_ns == NEVER_NS:
            self._replay(turn)

    def _replay(self, turn: Turn) -> None:
        """Replay the matches of a wakeable whose time changed, up to the first whose winner stays."""
        first, count = self._first, len(self._turns)
        if len(first) != 2 * count:
            self._first = first = [turn] * count + self._turns
            for node in range(count - 1, 0, -1):
                first[node] = _sooner(first[2 * node], first[2 * node + 1])
            return
        at: i64 = (count + turn.place) >> 1
        while at:
            one, other = first[2 * at], first[2 * at + 1]
            if one.wakes_ns == other.wakes_ns:
                winner = one if one.place < other.place else other
            else:
                winner = one if one.wakes_ns < other.wakes_ns else other
            if first[at] is winner and winner is not turn:
                return
            first[at] = winner
            at >>= 1

    def _schedule(self, time_ns: int) -> None:
        self._events.schedule_last(self._call, time_ns)
        self._call_ns = time_ns


def _sooner(one: Turn, other: Turn) -> Turn:
    if one.wakes_ns == other.wakes_ns:
        return one if one.place < other.place else other
    return one if one.wakes_ns < other.wakes_ns else other
