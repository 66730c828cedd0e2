"""Workloads of LLMServingSim: JSON lines with `input_toks`, `output_toks`, `arrival_time_ns`, token ids.

Requests whose `input_tok_ids` begin alike share that beginning; blocks of 16 ids are compared.
Source: github.com/casys-kaist/LLMServingSim, MIT.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.errors import InputError
from blis_py.requests.table import Content, RequestTable
from blis_py.traces.gathered import Gathered
from blis_py.traces.json_rows import json_rows
from blis_py.traces.reading import Reading

BLOCK_TOKENS = 16
KEYS = ("arrival_time_ns", "input_toks", "output_toks")
SESSION = "sub_requests"


def read(path: Path, reading: Reading) -> RequestTable:
    """The requests of a workload.

    Raises:
        InputError: a line is wrong, or is a session of requests that follow one another.
    """
    gathered, prompts = Gathered(path, reading), _SharedPrompts()
    for number, where, row in json_rows(path, reading):
        if SESSION in row:
            fix = "keep the lines of single requests"
            raise InputError("sessions are not supported yet", file=where, key=SESSION, fix=fix)
        start, prompt, output = (row.get(key, "nothing") for key in KEYS)
        if gathered.add(where, number, start, prompt, output):
            prompts.add(row.get("input_tok_ids"), prompt)
    return prompts.shared(gathered.table())


class _SharedPrompts:
    """Which prompts begin alike, block by block."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, tuple[Any, ...]], int] = {}
        self._uses: list[int] = []
        self._chains: list[list[int]] = []

    def add(self, ids: Any, tokens: int) -> None:
        """The blocks of a prompt; one without ids shares nothing."""
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
