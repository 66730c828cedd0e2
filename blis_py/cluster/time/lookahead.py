"""Conservative lookahead: the time up to which no external event can reach an instance.

An instance keeps its own time and may run ahead of the simulation clock as long as no external event
reaches it and its state is not read. Each part of the cluster states the earliest time at which it might
do either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from blis_py.core.request import NEVER_NS

NOT_AT_ALL_NS: Final = -NEVER_NS
"""An event or a read is possible at any moment."""


class LookaheadSource(Protocol):
    """A part of the cluster that may send events to instances or read their state."""

    def safe_until_ns(self) -> int:
        """The latest time up to which, after all events so far, the part does neither; inclusive."""
        ...


class Lookahead:
    """The minimum over all parts, as of the latest `look`.

    Args:
        end_ns: when the run stops; no instance runs beyond it.
        none_ahead: no lookahead, for comparison: the outcome is the same.
    """

    def __init__(self, end_ns: int = NEVER_NS, none_ahead: bool = False) -> None:
        self._parts: Sequence[LookaheadSource] = ()
        self.end_ns = end_ns
        """End of the run."""
        self.none_ahead = none_ahead
        """Whether lookahead is switched off."""
        self.dispatches_ahead = False
        """Whether requests are dispatched ahead of their time where no instance may run ahead of its own."""
        self.min_reach = 0
        """Steps that are priced at once although an event may truncate them."""
        self.hands_over = False
        """Whether instances hand requests over to each other, so that the parts bound no instance by
        themselves."""
        self.until_ns = NOT_AT_ALL_NS if none_ahead else end_ns
        """Up to and including this time no instance state is read and no event not yet submitted reaches an
        instance."""
        self.parts_until_ns = self.until_ns
        """The same of the parts alone, without the hand-overs between instances."""

    def over(self, *parts: LookaheadSource) -> None:
        """Set the parts that bound the lookahead from now on."""
        self._parts = parts
        self.look()

    @property
    def is_open(self) -> bool:
        """Whether requests may be dispatched ahead of their time."""
        return self.dispatches_ahead or self.until_ns != NOT_AT_ALL_NS

    def narrow(self, until_ns: int) -> None:
        """Bound the lookahead for a later read of instance state; holds until `look`."""
        if not self.none_ahead:
            self.until_ns = self.parts_until_ns = min(until_ns, self.end_ns)

    def look(self) -> None:
        """Recompute the lookahead after a change."""
        if self.none_ahead:
            return
        until_ns = self.end_ns
        for part in self._parts:
            quiet_ns = part.safe_until_ns()
            if quiet_ns < until_ns:
                until_ns = quiet_ns
                if quiet_ns == NOT_AT_ALL_NS:
                    break
        self.parts_until_ns = until_ns
        self.until_ns = NOT_AT_ALL_NS if self.hands_over else until_ns
