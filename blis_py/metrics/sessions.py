"""Session statistics: completed sessions, unsent turns, and latencies of first and later turns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.distribution import Distribution, statistics
from blis_py.metrics.latencies import Latencies
from blis_py.metrics.record import Outcome, RunRecord, UnsentTurns
from blis_py.requests.table import Ints, RequestTable

_OPEN = (Outcome.QUEUED, Outcome.RUNNING)


def unsent_turns(table: RequestTable, outcome: NDArray[np.int8], sent: Ints) -> UnsentTurns | None:
    """The unsent turns of started sessions; `None` if no turn waits for another.

    Args:
        table, outcome: columns of all requests that might have been sent.
        sent: rows of those that were sent.
    """
    if table.think_ns is None or table.session is None:
        return None
    begun = table.session[sent]
    planned = np.bincount(table.session[table.session >= 0])
    arrived = np.bincount(begun[begun >= 0], minlength=len(planned))
    failed = (outcome[sent] > Outcome.LENGTH_CAPPED) & ~np.isin(outcome[sent], _OPEN) & (begun >= 0)
    broken = np.bincount(begun[failed], minlength=len(planned)) > 0
    missing = np.where(arrived > 0, planned - arrived, 0)
    return UnsentTurns(cancelled=int(missing[broken].sum()), not_reached=int(missing[~broken].sum()))


class _Sessions(NamedTuple):
    """One row for each started session."""

    first_ns: Ints
    last_ns: Ints
    """End of its latest turn, -1 if a turn has not ended."""
    failed: Ints
    """Turns that ended without an answer."""


def session_summary(record: RunRecord, columns: Latencies) -> dict[str, Any]:
    """Sessions and their turns; empty if no request belongs to a session.

    `broken_off` are sessions with an unanswered turn. `duration_ms` is from the first turn's arrival to
    the end of the last, of sessions that have ended; `ttft_ms` is reported separately for first and later
    turns.
    """
    session, rounds = record.table.session, record.table.round_index
    if session is None or not (session >= 0).any():
        return {}
    sessions, unsent = _sessions(record, session), record.unsent_turns
    over = sessions.last_ns >= 0
    stated: dict[str, Any] = {
        "sessions": len(sessions.first_ns),
        "turns": int((session >= 0).sum()),
        "broken_off": int((sessions.failed > 0).sum()),
    }
    if unsent is not None:
        stated |= {"cancelled_turns": unsent.cancelled, "turns_not_reached": unsent.not_reached}
    stated["duration_ms"] = statistics(
        Distribution.of((sessions.last_ns - sessions.first_ns)[over].astype(float))
    )
    if rounds is not None:
        for name, rows in (("first", rounds == 0), ("later", rounds > 0)):
            ttft_ns = columns.ttft_ns[rows & (session >= 0)]
            stated[f"{name}_turns_ttft_ms"] = statistics(Distribution.of(ttft_ns[~np.isnan(ttft_ns)]))
    return {"sessions": stated}


def _sessions(record: RunRecord, session: Ints) -> _Sessions:
    rows = np.flatnonzero(session >= 0)
    rows = rows[np.argsort(session[rows], kind="stable")]
    begins = np.flatnonzero(np.diff(session[rows], prepend=-1))
    finish_ns, outcome = record.finish_ns[rows], record.outcome[rows]
    unfinished = np.logical_or.reduceat(finish_ns < 0, begins)
    failed = (outcome > Outcome.LENGTH_CAPPED) & ~np.isin(outcome, _OPEN)
    return _Sessions(
        np.minimum.reduceat(record.table.arrival_ns[rows], begins),
        np.where(unfinished, -1, np.maximum.reduceat(finish_ns, begins)),
        np.add.reduceat(failed.astype(np.int64), begins),
    )
