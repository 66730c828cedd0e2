"""Closed-loop sessions: a turn is sent when the previous one has been answered, after a pause."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from blis_py.requests.table import Ints, RequestTable, deadlines_ns


def rounds_of(session: Ints) -> Ints:
    """Place of each row in its session, in the order of the rows; 0 of a row without session."""
    rounds = np.zeros(len(session), dtype=np.int64)
    rows = np.flatnonzero(session >= 0)
    in_turn = rows[np.argsort(session[rows], kind="stable")]
    begins = np.flatnonzero(np.diff(session[in_turn], prepend=-1))
    counts = np.diff(np.append(begins, len(in_turn)))
    rounds[in_turn] = np.arange(len(in_turn)) - np.repeat(begins, counts)
    return rounds


def waits(table: RequestTable) -> NDArray[np.bool_]:
    """Mask of the rows sent after an answer: the later turns of closed-loop sessions."""
    if table.think_ns is None or table.round_index is None:
        return np.zeros(len(table), dtype=np.bool_)
    waiting: NDArray[np.bool_] = (table.round_index > 0) & (table.think_ns >= 0)
    return waiting


def later_turns_last(table: RequestTable) -> RequestTable:
    """The table with independently timed requests first, in unchanged order, then the later turns."""
    return table.take(np.argsort(waits(table), kind="stable"))


def next_turns(table: RequestTable) -> dict[int, int]:
    """The successor of each row that some turn waits for."""
    later = np.flatnonzero(waits(table))
    if not len(later):
        return {}
    assert table.session is not None
    assert table.round_index is not None
    begun = np.isin(table.session, np.unique(table.session[later]))
    rows = np.flatnonzero(begun & (table.session >= 0))
    rows = rows[np.lexsort((table.round_index[rows], table.session[rows]))]
    session = table.session[rows]
    follows = np.flatnonzero(session[1:] == session[:-1])
    return dict(zip(rows[follows].tolist(), rows[follows + 1].tolist(), strict=True))


def as_early_as_can_be(table: RequestTable) -> RequestTable:
    """The table with later turns at their earliest arrivals, as if answers took no time; patience is kept."""
    later = waits(table)
    if not later.any():
        return table
    assert table.session is not None
    assert table.round_index is not None
    assert table.think_ns is not None
    rows = np.flatnonzero(table.session >= 0)
    rows = rows[np.lexsort((table.round_index[rows], table.session[rows]))]
    pause_ns = np.where(later[rows], table.think_ns[rows], table.arrival_ns[rows])
    passed_ns = np.cumsum(pause_ns)
    begins = np.flatnonzero(~later[rows])
    before_ns = np.repeat((passed_ns - pause_ns)[begins], np.diff(np.append(begins, len(rows))))
    arrival_ns = table.arrival_ns.copy()
    arrival_ns[rows] = passed_ns - before_ns
    patience_ns = np.where(table.deadline_ns < 0, -1, np.maximum(table.deadline_ns - table.arrival_ns, 0))
    return replace(table, arrival_ns=arrival_ns, deadline_ns=deadlines_ns(arrival_ns, patience_ns))
