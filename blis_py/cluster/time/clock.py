"""SimPy's clock on the event queue of the simulator: SimPy's processes and all other calls in one order."""

from __future__ import annotations

from typing import Any

from simpy import Environment, Event
from simpy.core import EmptySchedule, Infinity
from simpy.events import NORMAL, EventPriority

from blis_py.cluster.time.events import EventQueue


class SimClock(Environment):
    """SimPy's environment whose events are those of an `EventQueue`.

    Attributes:
        events: the queue.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events = EventQueue(self._happens)

    @property
    def now(self) -> int:
        return self.events.now_ns

    def schedule(self, event: Event, priority: EventPriority = NORMAL, delay: Any = 0) -> None:
        self.events.push(event, self.events.now_ns + int(delay), priority)

    def peek(self) -> Any:
        return self.events.next_ns() if self.events else Infinity

    def step(self) -> None:
        """Let the next event happen.

        Raises:
            EmptySchedule: there is none.
        """
        if not self.events:
            raise EmptySchedule
        self.events.step()

    def _happens(self, event: object) -> None:
        """Process an event of SimPy: call what waits for it, unless it failed unseen."""
        assert isinstance(event, Event)
        callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
        for callback in callbacks:
            callback(event)
        if not event._ok and not hasattr(event, "_defused"):
            raise event._value
