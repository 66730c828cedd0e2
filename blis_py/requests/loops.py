"""Closed loops: requests that are sent when others have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

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
    """The loops of a table, each row in one of them.

    Attributes:
        at_most: requests that are sent, those that can be first; `None` = all of the table.
    """

    parts: Sequence[Loop]
    at_most: int | None = None

    def limited(self, count: int) -> Loops:
        """With no more requests than that."""
        return replace(self, at_most=count if self.at_most is None else min(count, self.at_most))

    def of_rows(self, table: RequestTable) -> list[int]:
        """Index of the loop that each row belongs to."""
        which = np.full(len(table), -1, dtype=np.int64)
        for index, loop in enumerate(self.parts):
            which[loop.rows] = index
        if (which < 0).any():
            raise ValueError("a row is in no loop")
        return which.tolist()
