"""Closed loops: requests that are sent when others end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from blis_py.requests.sessions import waits
from blis_py.requests.table import RequestTable


@dataclass(frozen=True, slots=True)
class Loop:
    """Consecutive requests of a table under a common concurrency limit.

    Attributes:
        rows: of the table, consecutive: requests, or first turns of sessions.
        permits: most requests or sessions in progress; `None` = an open loop.
        think_ns: from the end of a request or session, as seen by the client, until its permit is free again.
        paced: each is due at its arrival in the table; otherwise as soon as a permit is free.
    """

    rows: slice
    permits: int | None = None
    think_ns: int = 0
    paced: bool = True


@dataclass(frozen=True, slots=True)
class Loops:
    """The loops of a table; each row belongs to one, except turns that wait for the previous turn.

    Attributes:
        at_most: most requests to send, those sent first; `None` = all of the table.
        later_turns: whether sessions are closed loops too: their later turns follow all loops in the table,
        and each is sent when the previous turn has been answered and the think time is over.
        as_blis: BLIS semantics: clients continue at the end of an answer's last step, before front-end
        delays; clients without an answer stop; and the clients of a concurrency limit start staggered over
        one pause.
    """

    parts: Sequence[Loop]
    at_most: int | None = None
    later_turns: bool = False
    as_blis: bool = False

    @property
    def only_turns(self) -> bool:
        """Whether only the later turns of sessions wait."""
        return self.later_turns and all(loop.permits is None for loop in self.parts)

    def most(self, table: RequestTable) -> int:
        """Most requests that are sent of a table."""
        return len(table) if self.at_most is None else min(self.at_most, len(table))

    def at_once(self, table: RequestTable) -> int:
        """Requests sent at the start of the run, by clients that then wait for their answers."""
        count = 0
        for loop in self.parts:
            if loop.permits is None or (self.as_blis and loop.think_ns):
                continue
            due_ns = table.arrival_ns[loop.rows]
            ready = int((due_ns == due_ns[:1]).sum()) if loop.paced else len(due_ns)
            count += min(loop.permits, ready)
        return count if self.at_most is None else min(count, self.at_most)

    def limited(self, count: int) -> Loops:
        """A copy with at most `count` requests."""
        return replace(self, at_most=count if self.at_most is None else min(count, self.at_most))

    def check(self, table: RequestTable) -> None:
        """
        Raises:
            ValueError: a row is in no loop, or a waiting turn is in one.
        """
        in_loop = np.zeros(len(table), dtype=np.bool_)
        for loop in self.parts:
            in_loop[loop.rows] = True
        if (in_loop == (waits(table) & self.later_turns)).any():
            raise ValueError("a row is in no loop, or a turn that waits is in one")
