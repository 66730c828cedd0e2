"""Events that an extension schedules, such as an instance that is added at a certain time."""

from __future__ import annotations

from blis_py.cluster.events import CHANGES, Action, EventQueue
from blis_py.cluster.outlook import NOT_AT_ALL_NS
from blis_py.errors import InputError


class Agenda:
    """Events of extensions, before everything else of the same nanosecond.

    A run that begins with one has no lookahead: what its events change cannot be known before.
    """

    def __init__(self, events: EventQueue) -> None:
        self._events = events
        self._has_begun = False
        self.is_used = False
        """Whether there has been an event to come."""

    @property
    def now_ns(self) -> int:
        return self._events.now_ns

    def begin(self) -> None:
        """The run begins."""
        self._has_begun = True

    def call_at(self, time_ns: int, action: Action) -> None:
        """Calls `action` at a time.

        Raises:
            InputError: the time is over, or the run has begun without any event.
        """
        self.require_used("call_at")
        if time_ns < self.now_ns:
            raise InputError("the time is over", key="time_ns", value=time_ns, fix=f"now is {self.now_ns}")
        self.is_used = True
        self._events.call_at(time_ns, action, CHANGES)

    def require_used(self, what: str) -> None:
        """
        Raises:
            InputError: the run has begun without any event, so that requests may have been dispatched ahead
                of their time.
        """
        if self._has_begun and not self.is_used:
            fix = "schedule an event with Simulation.call_at before the run begins"
            raise InputError("the run looks ahead, which no change may follow", key=what, fix=fix)

    def quiet_until_ns(self) -> int:
        """See `blis_py.cluster.outlook.Part`; a part of runs that begin with an event."""
        return NOT_AT_ALL_NS
