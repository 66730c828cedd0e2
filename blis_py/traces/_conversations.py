"""Turns of recorded conversations: one session each, and prompts that begin with the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from blis_py.requests.sessions import rounds_of
from blis_py.requests.table import Ints, RequestTable
from blis_py.traces.reading import Reading

_GROWING_SHARE = 0.75
"""Share of later turns with a longer prompt than the turn before, from which on conversations grow."""


def in_conversations(
    table: RequestTable,
    names: Sequence[Any],
    reading: Reading,
    *,
    turn: Ints | None = None,
    answered_ns: Ints | None = None,
) -> RequestTable:
    """The table with its conversations as sessions, unless all have a single turn.

    A prompt begins with the prompt before it and, where it is long enough, with the answer; a shorter one
    begins anew. Conversations whose prompts mostly do not grow are left as they are, with a note.

    Args:
        names: conversation of each row; None or empty = none.
        turn: order of the turns; None = by arrival.
        answered_ns: end of each answer, for pauses between turns; 0 if unknown.
    """
    numbers: dict[str, int] = {}
    session = np.array(
        [-1 if name in (None, "") else numbers.setdefault(str(name), len(numbers)) for name in names],
        dtype=np.int64,
    )
    turns = () if turn is None else (turn,)
    in_turn = np.lexsort((np.arange(len(table)), table.arrival_ns, *turns, session))
    rounds = np.zeros(len(table), dtype=np.int64)
    rounds[in_turn] = rounds_of(session[in_turn])
    if not rounds.any():
        return table
    reading.answered_ns = answered_ns
    table = replace(table, session=session, session_names=list(numbers), round_index=rounds)
    return table if table.contents else _grown(table, in_turn, reading)


def _grown(table: RequestTable, in_turn: Ints, reading: Reading) -> RequestTable:
    assert table.session is not None
    assert table.round_index is not None
    later = in_turn[table.round_index[in_turn] > 0]
    before = in_turn[np.flatnonzero(table.round_index[in_turn] > 0) - 1]
    grows = table.prompt_tokens[later] >= table.prompt_tokens[before]
    count = len(np.unique(table.session[later]))
    conversations = f"{count:,} conversation{'s' if count > 1 else ''} of several turns"
    if grows.mean() < _GROWING_SHARE:
        reading.note(
            f"prompts of {conversations} do not grow: each turn is played with its own tokens, without "
            "the turns before it"
        )
        return table
    anew = int((~grows).sum())
    shorter = f"; {anew:,} shorter prompts begin anew" if anew else ""
    reading.note(f"{conversations}: each prompt begins with the one before{shorter}")
    content, contents = table.content.copy(), list(table.contents)
    runs: list[tuple[str | int, int]] = []
    for row in in_turn[table.session[in_turn] >= 0].tolist():
        turn = int(table.round_index[row])
        name = f"conversation {table.session[row]}, turn {turn}"
        runs = _continued([] if turn == 0 else runs, int(table.prompt_tokens[row]), name)
        content[row] = len(contents)
        contents.append((*runs, (f"{name}, answer", int(table.output_tokens[row]))))
        runs = list(contents[-1])
    return replace(table, content=content, contents=tuple(contents))


def _continued(runs: list[tuple[str | int, int]], tokens: int, name: str) -> list[tuple[str | int, int]]:
    """The runs of a prompt of so many tokens after these of the turn before, its answer last."""
    known = sum(length for _, length in runs)
    if runs and tokens < known:  # the answer does not belong to the prompt, or not in full
        known -= runs[-1][1]
        runs = runs[:-1]
    if tokens < known:
        runs, known = [], 0
    return [*runs, (name, tokens - known)] if tokens > known else runs
