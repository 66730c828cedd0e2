"""Workloads of LLMServingSim: JSON lines with `input_toks`, `output_toks`, `arrival_time_ns`, token ids.

Requests whose `input_tok_ids` have a common prefix share it, in blocks of 16 ids. A line with `sub_requests`
is a session: each is sent when the previous one has been answered and its tool, which takes
`tool_duration_ns`, has finished.
Source: github.com/casys-kaist/LLMServingSim, MIT.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.core.bounds import LAST_NS
from blis_py.errors import InputError
from blis_py.requests.table import Content, RequestTable
from blis_py.traces._gathered import Gathered
from blis_py.traces._gathered_turns import GatheredTurns, check_session
from blis_py.traces._json_rows import json_rows
from blis_py.traces.reading import Reading

BLOCK_TOKENS = 16
KEYS = ("arrival_time_ns", "input_toks", "output_toks")
SESSION, TOOL = "sub_requests", "tool_duration_ns"


def read(path: Path, reading: Reading) -> RequestTable:
    """The requests of a workload.

    Raises:
        InputError: an invalid line.
    """
    gathered, prompts, turns = Gathered(path, reading), _SharedPrompts(), GatheredTurns()
    for number, where, row in json_rows(path, reading):
        try:
            session, sent = _sent(row, number, where)
            if turns.known(session):
                raise InputError("a session of this name before", file=where, key="session_id", value=session)
        except InputError as error:
            reading.bad.refuse(error, number)
            continue
        turns.begins(session, 0)
        start, think_ns = row.get(KEYS[0], "nothing"), 0
        for place, each in enumerate(sent):
            prompt, output = (each.get(key, "nothing") for key in KEYS[1:])
            if gathered.add(where, number, start, prompt, output):
                prompts.add(each.get("input_tok_ids"), prompt)
                turns.add(session, think_ns, place == 0)
                think_ns = 0
            think_ns += each.get(TOOL, 0)
    return turns.of(prompts.shared(gathered.table()), reading)


def _sent(row: dict[str, Any], number: int, where: str) -> tuple[Any, list[dict[str, Any]]]:
    """The requests of a line, and its session; `None` for a line with one request."""
    if SESSION not in row:
        return None, [row]
    session, sent = row.get("session_id", f"line {number}"), row[SESSION]
    check_session(session, where)
    if not (isinstance(sent, list) and sent and all(isinstance(each, dict) for each in sent)):
        raise InputError("must be a list of requests", file=where, key=SESSION)
    for each in sent:
        took_ns = each.get(TOOL, 0)
        if type(took_ns) is not int or not 0 <= took_ns <= LAST_NS:
            raise InputError("must be a whole number of ns", file=where, key=TOOL, value=took_ns)
    return session, sent


class _SharedPrompts:
    """Common prefixes of prompts, block by block."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, tuple[Any, ...]], int] = {}
        self._uses: list[int] = []
        self._chains: list[list[int]] = []

    def add(self, ids: Any, tokens: int) -> None:
        """Add a prompt's blocks; a prompt without ids shares nothing."""
        chain, before = [], -1
        known = ids if isinstance(ids, list) and len(ids) == tokens else []
        for start in range(0, len(known) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            key = (before, tuple(known[start : start + BLOCK_TOKENS]))
            before = self._blocks.setdefault(key, len(self._blocks))
            if before == len(self._uses):
                self._uses.append(0)
            self._uses[before] += 1
            chain.append(before)
        self._chains.append(chain)

    def shared(self, table: RequestTable) -> RequestTable:
        contents: dict[Content, int] = {}
        column = np.full(len(table), -1, dtype=np.int64)
        for row, chain in enumerate(self._chains):
            runs = tuple((block, BLOCK_TOKENS) for block in chain if self._uses[block] > 1)
            if runs:
                column[row] = contents.setdefault(runs, len(contents))
        return replace(table, content=column, contents=tuple(contents))
