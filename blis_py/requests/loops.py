"""Closed loops: requests that are sent when others have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from blis_py.requests.sessions import waits
from blis_py.requests.table import RequestTable


@dataclass(frozen=True, slots=True)
class Loop:
    """Some requests of a table, and what limits how many of them are under way.

    Attributes:
        rows: of the table, consecutive.
        permits: at most so many of them are under way; `None` = an open loop.
        think_ns: from an end, as the client sees it, until its permit is free again.
        paced: each is due at its arrival in the table; otherwise as soon as a permit is free.
    """

    rows: slice
    permits: int | None = None
    think_ns: int = 0
    paced: bool = True


@dataclass(frozen=True, slots=True)
class Loops:
    """The loops of a table, each row in one of them, but for turns that wait for the one before.

    Attributes:
        at_most: requests that are sent, those that can be first; `None` = all of the table.
        later_turns: whether sessions are closed loops too: their later turns stand behind all loops, and
            each is sent when the one before has been answered and its client has thought.
        as_blis: as BLIS does it: clients go on when the last step of an answer has ended, whatever the front
            end does then; who has not been answered does not go on; and those who send again and again
            begin one after the other within a pause.
    """

    parts: Sequence[Loop]
    at_most: int | None = None
    later_turns: bool = False
    as_blis: bool = False

    @property
    def only_turns(self) -> bool:
        """Whether nothing waits but the later turns of sessions."""
        return self.later_turns and all(loop.permits is None for loop in self.parts)

    def limited(self, count: int) -> Loops:
        """With no more requests than that."""
        return replace(self, at_most=count if self.at_most is None else min(count, self.at_most))

    def of_rows(self, table: RequestTable) -> list[int]:
        """Index of the loop that each row belongs to; -1 of turns that wait."""
        which = np.full(len(table), -1, dtype=np.int64)
        for index, loop in enumerate(self.parts):
            which[loop.rows] = index
        if ((which < 0) != (waits(table) & self.later_turns)).any():
            raise ValueError("a row is in no loop, or a turn that waits is in one")
        return which.tolist()
