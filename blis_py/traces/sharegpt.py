"""ShareGPT dumps: text conversations, whose first prompt and answer make a request.

A JSON list or lines of `{id, conversations: [{from, value}, ...]}`, as read by vLLM's and SGLang's
benchmarks, which use the first two turns as well. It has no arrival times.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from blis_py.requests.table import RequestTable
from blis_py.traces._gathered import Gathered
from blis_py.traces._json_rows import items, json_rows, within
from blis_py.traces.reading import Reading
from blis_py.traces.tokens import Tokens


def read(path: Path, reading: Reading, document: list[Any]) -> RequestTable:
    """One request for every conversation with an answer."""
    return _read(path, reading, document)


def read_lines(path: Path, reading: Reading) -> RequestTable:
    """One request for every line with an answered conversation."""
    return _read(path, reading, (row for _, _, row in json_rows(path, reading)))


def _read(path: Path, reading: Reading, entries: Iterable[Any]) -> RequestTable:
    reading.has_times = False
    tokens, gathered = Tokens(reading), Gathered(path, reading)
    unanswered = longer = 0
    for number, entry in enumerate(entries):
        turns = items(within(entry, "conversations")) or items(within(entry, "conversation"))
        texts = [within(turn, "value") or within(turn, "content") for turn in turns[:2]]
        if len(texts) < 2 or not all(isinstance(text, str) and text for text in texts):
            unanswered += 1
            continue
        longer += len(turns) > 2
        gathered.add(f"{path}: conversation {number}", number, None, *(tokens.count(text) for text in texts))
    reading.left_out(unanswered, "a conversation without question and answer")
    if longer:
        reading.note(f"of {longer:,} longer conversations only the first question is sent, as benchmarks do")
    tokens.note()
    return gathered.table()
