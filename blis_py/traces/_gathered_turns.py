"""Session membership of the requests of a recording, collected row by row."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import numpy as np

from blis_py.errors import InputError
from blis_py.requests.sessions import rounds_of
from blis_py.requests.table import RequestTable
from blis_py.traces.reading import Reading


class GatheredTurns:
    """Sessions so far, and the turn of each request."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._starts_ns: list[int] = []
        self._session, self._think_ns = array("q"), array("q")
        self._timeless = False

    def begins(self, session: Any, arrival_ns: int) -> None:
        """Note an arrival of a turn; the first one noted counts as the start of the session."""
        if session is not None and str(session) not in self._numbers:
            self._numbers[str(session)] = len(self._numbers)
            self._starts_ns.append(arrival_ns)

    def known(self, session: Any) -> bool:
        """Whether the session has begun."""
        return session is not None and str(session) in self._numbers

    def start_ns(self, session: Any) -> int:
        """Start of the session in ns; 0 if unknown."""
        return self._starts_ns[self._numbers[str(session)]] if self.known(session) else 0

    def add(self, session: Any, think_ns: int, has_time: bool) -> None:
        """Add a request of a known session, or of none."""
        self._session.append(-1 if session is None else self._numbers[str(session)])
        self._think_ns.append(think_ns)
        self._timeless |= not has_time

    def of(self, table: RequestTable, reading: Reading) -> RequestTable:
        """The table of these requests, with their sessions, if any."""
        if not self._numbers:
            return table
        session = np.asarray(self._session)
        reading.only_pauses |= self._timeless
        return replace(
            table,
            session=session,
            session_names=list(self._numbers),
            round_index=rounds_of(session),
            think_ns=np.asarray(self._think_ns),
        )


def check_session(name: Any, where: str) -> None:
    """
    Raises:
        InputError: not a valid session name.
    """
    if name is None or (isinstance(name, str | int) and not isinstance(name, bool) and name != ""):
        return
    raise InputError("must be a text or a whole number", file=where, key="session_id", value=name)
