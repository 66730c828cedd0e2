"""ShareGPT dumps: text conversations, whose first prompt and answer make a request.

A JSON list or lines of `{id, conversations: [{from, value}, ...]}`, as read by vLLM's and SGLang's
benchmarks, or of `{messages: [{role, content}, ...]}`. The prompt is the first question, after the system
prompt if there is one; the benchmarks take the first two turns, whatever they are. It has no arrival times.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from blis_py.requests.table import RequestTable
from blis_py.traces._gathered import Gathered
from blis_py.traces._json_rows import items, json_rows, within
from blis_py.traces.reading import Reading
from blis_py.traces.tokens import Tokens

KEYS = ("conversations", "conversation", "messages")
_ANSWERING = ("gpt", "assistant", "chatgpt", "bing", "bard", "model", "bot")


def read(path: Path, reading: Reading, document: list[Any]) -> RequestTable:
    """One request for every conversation with an answer."""
    return _read(path, reading, document)


def read_lines(path: Path, reading: Reading) -> RequestTable:
    """One request for every line with an answered conversation."""
    return _read(path, reading, (row for _, _, row in json_rows(path, reading)))


def _read(path: Path, reading: Reading, entries: Iterable[Any]) -> RequestTable:
    reading.has_times = False
    tokens, gathered = Tokens(reading), Gathered(path, reading)
    unanswered = longer = dated = 0
    for number, entry in enumerate(entries):
        turns = next(filter(None, (items(within(entry, key)) for key in KEYS)), [])
        texts, goes_on = _first_exchange(turns)
        if not texts:
            unanswered += 1
            continue
        longer += goes_on
        dated += within(entry, "timestamp") is not None
        gathered.add(f"{path}: conversation {number}", number, None, *(tokens.count(text) for text in texts))
    reading.left_out(unanswered, "a conversation without question and answer")
    if longer:
        reading.note(f"of {longer:,} longer conversations only the first question is sent, as benchmarks do")
    if dated:
        reading.note(f"timestamps of {dated:,} conversations are not used: they are those of the last turns")
    tokens.note()
    return gathered.table()


def _first_exchange(turns: list[Any]) -> tuple[list[str], bool]:
    """Texts of the first question, after the system prompt, and of its answer; whether others follow."""
    system = ""
    for number, pair in enumerate(pairwise(turns)):
        role = within(pair[0], "from") or within(pair[0], "role")
        question, answer = (within(turn, "value") or within(turn, "content") for turn in pair)
        if role in _ANSWERING:
            continue
        if not (isinstance(question, str) and question and isinstance(answer, str) and answer):
            break
        if role != "system":
            return [system + question, answer], number + 2 < len(turns)
        system += question
    return [], False
