"""What a sleeping instance waits for."""

from __future__ import annotations

from simpy import Environment, Event


class Alarm(Event):
    """Wakes a sleeping loop. Unlike a timeout's, its sleeper can be moved to another alarm."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.callbacks = []
        self._ok = True
        self._value = None
