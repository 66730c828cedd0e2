"""The turns of a recorded trace as a closed loop: each is sent when the previous one has been answered.

The content of a turn is as recorded or, if the trace has only the additions of turns, the accumulated
conversation. Its time follows from the previous answer and a pause.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from blis_py.core.bounds import MAX_TOKENS
from blis_py.errors import InputError
from blis_py.requests.sessions import as_early_as_can_be, rounds_of, waits
from blis_py.requests.streams import stream
from blis_py.requests.table import Content, Ints, RequestTable
from blis_py.requests.think_time import LONGEST_NS
from blis_py.traces.reading import Reading

CLOSED, FIXED = "closed-loop", "fixed"


def in_sessions(table: RequestTable, reading: Reading, path: Path, seed: int) -> RequestTable:
    """The table for playing its sessions: at the recorded times, or as closed loops.

    Raises:
        InputError: a closed loop without sessions, or sessions with missing turns.
    """
    if reading.session_mode != CLOSED and not reading.only_pauses:
        if reading.accumulates:
            reading.note(
                "every turn is played at its time with its own tokens, without the conversation before it; "
                "--session-mode closed-loop plays the conversations"
            )
        return replace(table, think_ns=None)
    if reading.session_mode == FIXED:
        problem, fix = "its turns have pauses, and no times of their own", "leave it out"
        raise InputError(problem, file=path, key="--session-mode", value=FIXED, fix=fix)
    if table.session is None:
        fix = "drop it, or limit the requests under way with --concurrency"
        raise InputError("no request says which session it belongs to", file=path, key="session_id", fix=fix)
    table = _checked(table, path)
    if reading.accumulates:
        table = _conversations(table, path, keeps_last=not reading.as_blis)
    table = replace(table, think_ns=_pauses(table, reading, seed, path))
    early = as_early_as_can_be(table)
    assert early.round_index is not None
    return early.take(np.argsort(early.round_index, kind="stable"))  # ties: earlier turn first


def _in_turn(table: RequestTable) -> Ints:
    """Rows of sessions, by session and turn."""
    assert table.session is not None
    rounds = np.zeros(len(table)) if table.round_index is None else table.round_index
    rows: Ints = np.flatnonzero(table.session >= 0)
    in_turn: Ints = rows[np.lexsort((rounds[rows], table.session[rows]))]
    return in_turn


def _checked(table: RequestTable, path: Path) -> RequestTable:
    """The table with the index of every turn in its session, which must be 0, 1, 2, ..."""
    assert table.session is not None
    if table.round_index is None or not table.round_index.any():
        return replace(table, round_index=rounds_of(table.session))
    rows = _in_turn(table)
    expected = rounds_of(table.session[rows])
    wrong = np.flatnonzero(table.round_index[rows] != expected)
    if len(wrong):
        row = int(rows[wrong[0]])
        raise InputError(
            f"turn {expected[wrong[0]]} of session {table.session_ids()[row]} is missing, or occurs twice",
            file=path,
            key="round_index",
            value=int(table.round_index[row]),
            fix="count the turns of every session 0, 1, 2, ...",
        )
    return table


def _conversations(table: RequestTable, path: Path, keeps_last: bool) -> RequestTable:
    """The table with every prompt preceded by its session's earlier prompts and answers.

    A session's prefix is that of its first turn. An answer has the length its limit allows.

    Args:
        keeps_last: whether prompts repeat the last token of each answer.
    """
    assert table.session is not None
    assert table.round_index is not None
    rows = _in_turn(table)
    first = rows[np.maximum.accumulate(np.where(table.round_index[rows] == 0, np.arange(len(rows)), 0))]
    """First turn of the session, for each of these rows."""
    limit, output_tokens = table.max_tokens[rows], table.output_tokens[rows]
    answer = np.where(limit > 0, np.minimum(output_tokens, limit), output_tokens)
    new = table.prompt_tokens[rows] - table.prefix_tokens[rows]
    before = _before(new + (answer if keeps_last else answer - 1), table.round_index[rows])
    prompts, prefixes = table.prompt_tokens.copy(), table.prefix_tokens.copy()
    prefixes[rows] = table.prefix_tokens[first]
    prompts[rows] = prefixes[rows] + before + new
    if prompts.max(initial=0) > MAX_TOKENS:
        name = table.session_ids()[int(np.argmax(prompts))]
        raise InputError("a conversation that is far too long", file=path, key="session_id", value=name)
    content, contents = _texts(table, rows, first, before + new + answer - 1)
    return replace(table, prompt_tokens=prompts, prefix_tokens=prefixes, content=content, contents=contents)


def _before(amounts: Ints, rounds: Ints) -> Ints:
    """Exclusive cumulative sum over the turns of each session; ordered by session and turn."""
    cumulated = np.cumsum(amounts) - amounts
    begins = np.maximum.accumulate(np.where(rounds == 0, np.arange(len(rounds)), 0))
    before: Ints = cumulated - cumulated[begins]
    return before


def _texts(table: RequestTable, rows: Ints, first: Ints, through: Ints) -> tuple[Ints, tuple[Content, ...]]:
    """Shared content of prompts: the session's first prefix, then a length of its own text."""
    assert table.session is not None
    content, contents = table.content.copy(), list(table.contents)
    for row, start, tokens in zip(rows.tolist(), first.tolist(), through.tolist(), strict=True):
        begin = contents[table.content[start]] if table.content[start] >= 0 else ()
        content[row] = len(contents)
        contents.append((*begin, (f"conversation {table.session[row]}", tokens)) if tokens else begin)
    return content, tuple(contents)


def _pauses(table: RequestTable, reading: Reading, seed: int, path: Path) -> Ints:
    """Pause before every turn: as configured, as recorded, or derived from the trace's times."""
    think_ns = np.zeros(len(table), dtype=np.int64)
    later = waits(replace(table, think_ns=think_ns))
    if reading.think is not None:
        think_ns[later] = reading.think.draw(stream(seed, "trace", "think time"), int(later.sum()))
    elif reading.only_pauses or (table.think_ns is not None and (table.think_ns[later] > 0).any()):
        assert table.think_ns is not None
        think_ns[later] = np.maximum(table.think_ns[later], 0)
    elif later.any():
        think_ns = np.where(later, _gaps_ns(table, reading), 0)
    if think_ns.max(initial=0) > LONGEST_NS:
        raise InputError("more than a month between two turns", file=path, key="think_time_us")
    return think_ns


def _gaps_ns(table: RequestTable, reading: Reading) -> Ints:
    """Gap from the previous answer's end to the turn, if the trace has both; else between turns."""
    rows = _in_turn(table)
    answered_ns = reading.answered_ns
    known = answered_ns is not None and bool((answered_ns[rows] > 0).any()) and not reading.as_blis
    if known:
        assert answered_ns is not None
        since_ns = np.where(answered_ns > 0, answered_ns, table.arrival_ns)
    else:
        since_ns = table.arrival_ns
        reading.note(
            "the trace has no pauses between turns: those between their arrivals are taken, which contain "
            "the answers; --think-time-ms or --think-time-dist says otherwise"
        )
    gaps = np.zeros(len(table), dtype=np.int64)
    gaps[rows[1:]] = np.maximum(table.arrival_ns[rows[1:]] - since_ns[rows[:-1]], 0)
    return gaps
