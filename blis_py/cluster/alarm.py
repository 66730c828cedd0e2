"""SimPy's event for the time at which an instance goes on, or the gateway looks at its queue."""

from __future__ import annotations

from typing import Any

from simpy import Environment, Event
from simpy.events import NORMAL, EventPriority

ARRIVALS = NORMAL
EXPIRIES = EventPriority(2)
"""Of requests that wait at the gateway."""
EXAMINATIONS = EventPriority(3)
"""Of the queue there."""
AFTER_ARRIVALS = EventPriority(4)
"""SimPy priority of the end of a step: what arrives at the same instant is seen by the next one."""


class Alarm(Event):
    """Rings once, and cannot fail."""

    def __init__(self, env: Environment, value: Any = None) -> None:
        self.env = env
        self.callbacks = []
        self._ok = True
        self._value = value

    def ring_at(self, time_ns: int, priority: EventPriority = AFTER_ARRIVALS) -> None:
        """To be called once."""
        self.env.schedule(self, priority, time_ns - int(self.env.now))
