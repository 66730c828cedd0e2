"""Events scheduled by extensions, such as adding an instance at a given time."""

from __future__ import annotations

from blis_py.cluster.time.events import CHANGES, Action, EventQueue
from blis_py.cluster.time.lookahead import NOT_AT_ALL_NS
from blis_py.errors import InputError


class FleetEvents:
    """Events of extensions, before all other events of the same nanosecond.

    A run that begins with such an event has no lookahead: its effects cannot be known in advance.
    """

    def __init__(self, events: EventQueue) -> None:
        self._events = events
        self._has_begun = False
        self.is_used = False
        """Whether any event has been scheduled."""

    @property
    def now_ns(self) -> int:
        return self._events.now_ns

    def begin(self) -> None:
        """Mark the beginning of the run."""
        self._has_begun = True

    def call_at(self, time_ns: int, action: Action) -> None:
        """Call `action` at a time.

        Raises:
            InputError: the time has passed, or the run has begun without any event.
        """
        self.require_used("call_at")
        if time_ns < self.now_ns:
            raise InputError("the time is over", key="time_ns", value=time_ns, fix=f"now is {self.now_ns}")
        self.is_used = True
        self._events.call_at(time_ns, action, CHANGES)

    def require_used(self, what: str) -> None:
        """Require that the run began with an event.

        Raises:
            InputError: the run has begun without any event, so that requests may have been dispatched ahead
                of their time.
        """
        if self._has_begun and not self.is_used:
            fix = "schedule an event with Simulation.call_at before the run begins"
            raise InputError("the run looks ahead, which no change may follow", key=what, fix=fix)

    def safe_until_ns(self) -> int:
        """See `blis_py.cluster.time.lookahead`; consulted only in runs that begin with an event."""
        return NOT_AT_ALL_NS
