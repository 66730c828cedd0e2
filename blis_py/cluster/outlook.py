"""Looking ahead: until when nobody outside disturbs an instance.

An instance keeps its own time and may run ahead of the simulation's clock as long as nothing reaches it from
outside and nobody looks at it. Who could, and when at the earliest, every part of the cluster says of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from blis_py.core.request import NEVER_NS

NOT_AT_ALL_NS: Final = -NEVER_NS
"""Somebody may come, or look, at any moment."""


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
        self._parts: Sequence[Part] = ()
        self.end_ns = end_ns
        """When the run stops."""
        self._none_ahead = none_ahead
        self.until_ns = NOT_AT_ALL_NS if none_ahead else end_ns
        """Nobody looks at an instance, and nothing not submitted yet reaches it, before or at this time."""

    def over(self, *parts: Part) -> None:
        """From now on these are asked; nobody else disturbs."""
        self._parts = parts
        self.look()

    @property
    def is_open(self) -> bool:
        """Whether there is any looking ahead, so that requests may be dispatched before their time."""
        return self.until_ns != NOT_AT_ALL_NS

    def narrow(self, until_ns: int) -> None:
        """Somebody will look behind this time; nobody runs beyond it until `look`."""
        if not self._none_ahead:
            self.until_ns = min(until_ns, self.end_ns)

    def look(self) -> None:
        """Something has changed: asks every part again."""
        if self._none_ahead:
            return
        until_ns = self.end_ns
        for part in self._parts:
            quiet_ns = part.quiet_until_ns()
            if quiet_ns < until_ns:
                until_ns = quiet_ns
                if quiet_ns == NOT_AT_ALL_NS:
                    break
        self.until_ns = until_ns
