"""Looking ahead: until when nobody outside disturbs an instance.

An instance keeps its own time and may run ahead of the simulation's clock as long as nothing reaches it from
outside and nobody looks at it. Who could, and when at the earliest, every part of the cluster says of itself.
"""

from __future__ import annotations

from typing import Protocol

from blis_py.core.request import NEVER_NS

NOT_AT_ALL_NS = -1
"""Somebody may come at any moment."""


class Part(Protocol):
    """What may reach or look at an instance."""

    def quiet_until_ns(self) -> int:
        """It will not before or at this time, given everything that has happened so far."""
        ...


class Outlook:
    """What all parts together say, at the latest look at them.

    Args:
        end_ns: when the run stops: nobody runs beyond.
        none_ahead: no looking ahead at all; for comparison: the outcome is the same.
    """

    def __init__(self, end_ns: int = NEVER_NS, none_ahead: bool = False) -> None:
        self.parts: list[Part] = []
        """Without any, nobody will ever disturb."""
        self._end_ns = end_ns
        self._none_ahead = none_ahead
        self.until_ns = NOT_AT_ALL_NS if none_ahead else end_ns
        """Nobody looks at an instance, and nothing not submitted yet reaches it, before or at this time."""

    def look(self) -> None:
        """Something has changed: asks every part again."""
        if not self._none_ahead:
            self.until_ns = min([self._end_ns, *[part.quiet_until_ns() for part in self.parts]])
