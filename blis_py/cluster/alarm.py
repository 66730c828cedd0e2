"""SimPy's event for the time at which an instance goes on."""

from __future__ import annotations

from simpy import Environment, Event
from simpy.events import EventPriority

AFTER_ARRIVALS = EventPriority(2)
"""SimPy priority of the end of a step: what arrives at the same instant is seen by the next one."""


class Alarm(Event):
    """Rings once, and cannot fail."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.callbacks = []
        self._ok = True
        self._value = None

    def ring_at(self, time_ns: int) -> None:
        """To be called once."""
        self.env.schedule(self, AFTER_ARRIVALS, time_ns - int(self.env.now))
