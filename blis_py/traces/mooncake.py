"""Mooncake traces: JSON lines with prefix identity.

One object per line: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`, one id per 512 tokens of
prompt (the last block may be shorter). Equal leading ids mean equal leading tokens.
Sessions: rows with the same `session_id` are turns, in the order of the file. A turn after the first may
have a `delay` (ms after the previous answer), with or in place of its `timestamp`. Its prompt is whole if it
begins with the ids of the turn before or, without ids, is longer than that turn; otherwise it is an addition,
and the conversation is sent.
The traces of Qwen-Bailian have the same keys in s, ids of 16 tokens, and turns by `chat_id` and
`parent_chat_id`.
Source: github.com/kvcache-ai/Mooncake, Apache-2.0 (Qin et al., FAST 2025);
github.com/alibaba-edu/qwen-bailian-usagetraces-anon.
"""

from __future__ import annotations

import difflib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.core.bounds import LAST_NS, MAX_TOKENS
from blis_py.errors import InputError
from blis_py.files.json_files import parse_json
from blis_py.files.opening import reading as opened
from blis_py.requests.table import Content, RequestTable
from blis_py.traces._gathered import FAILED
from blis_py.traces._gathered_turns import GatheredTurns, check_session
from blis_py.traces._hash_blocks import check_ids, contents_of, runs_of_ids
from blis_py.traces._sessions import CLOSED
from blis_py.traces._units import FLAG as UNIT_FLAG
from blis_py.traces._units import TraceClock
from blis_py.traces.reading import Reading

BLOCK_TOKENS = 512
MS_NS = 1_000_000
KEYS = ("timestamp", "input_length", "output_length", "hash_ids", "request_id", "session_id", "delay")
WITHOUT_EFFECT = ("group_id",)
"""Keys of generators: prompts of a group begin with the same ids."""
OF_CHATS = ("chat_id", "parent_chat_id", "turn", "type")
NOT_YET = ("wait_for", "tool_wait_ms")
"""Keys of format variants with dependencies between arbitrary requests."""


@dataclass(frozen=True)
class KeySpelling:
    """Unit of times, tokens per hash id, and further keys."""

    unit: str
    block_tokens: int
    more: tuple[str, ...] = ()
    chats: bool = False
    """Whether turns name the turn before them."""


MOONCAKE = KeySpelling("ms", BLOCK_TOKENS)
BAILIAN = KeySpelling("s", 16, OF_CHATS, chats=True)


def read(path: Path, reading: Reading) -> RequestTable:
    """The requests of the trace, in the order of the file.

    A replaying client asks for exactly the recorded output, so `max_tokens` is `output_tokens`. Requests
    without output failed when they were recorded; they are left out and counted.

    Raises:
        InputError: with file, line, key and value.
    """
    return _read(path, reading, MOONCAKE)


def read_bailian(path: Path, reading: Reading) -> RequestTable:
    """The requests of a Qwen-Bailian trace.

    Raises:
        InputError: with file, line, key and value.
    """
    return _read(path, reading, BAILIAN)


def _read(path: Path, reading: Reading, spelling: KeySpelling) -> RequestTable:
    bad, rows = reading.bad, _Rows(reading, spelling)
    names: dict[str, int] = {}
    with opened(path) as text:
        for number, line in enumerate(text, 1):
            if not line.strip():
                continue
            try:
                row = _row(line, f"{path}:{number}", rows)
                _check_name(row, names, path, number)
            except InputError as error:
                bad.refuse(error, number)
                continue
            rows.add(row)
    reading.left_out(rows.failed, FAILED)
    if not rows.arrivals:
        first = "" if bad.first is None else f": all lines are bad, the first: {bad.first.problem}"
        fix = "give a file with at least one line"
        raise InputError(f"no requests in the trace{first}", file=path, fix=fix)
    if names and len(names) < len(rows.arrivals):
        raise InputError(
            "some lines have it and others do not", file=path, key="request_id", fix="give it to all"
        )
    return rows.table(list(names) or None)


class _Rows:
    """Requests gathered line by line."""

    def __init__(self, reading: Reading, spelling: KeySpelling) -> None:
        self.failed = 0
        """Requests without output."""
        self.arrivals = array("q")
        self.turns = GatheredTurns()
        self.spelling, self.block_tokens = spelling, reading.hash_block_size or spelling.block_tokens
        self.sure = reading.hash_block_size is not None
        self._reading, self._clock = reading, TraceClock(reading, spelling.unit)
        self._chats: dict[Any, Any] = {}
        """The first turn of the conversation of each chat."""
        self._prompts, self._outputs = array("q"), array("q")
        self._ids: list[tuple[int, ...]] = []
        self._delayed: list[bool] = []
        self._session: list[Any] = []

    def add(self, row: dict[str, Any]) -> None:
        """A checked line."""
        turns, session, sent = self.turns, self._session_of(row), row.get("timestamp")
        delayed = "delay" in row and turns.known(session)
        sent_ns = turns.start_ns(session) if sent is None else self._ns(sent)
        turns.begins(session, sent_ns)
        if row["output_length"] == 0:
            self.failed += 1
            return
        turns.add(session, round(row.get("delay", 0) * MS_NS), sent is not None)
        self.arrivals.append(sent_ns)
        self._prompts.append(row["input_length"])
        self._outputs.append(row["output_length"])
        self._ids.append(tuple(row.get("hash_ids", ())))
        self._delayed.append(delayed)
        self._session.append(session)

    def _ns(self, sent: float) -> int:
        return round(sent * int(self._clock.unit_ns(sent)))

    def check_time(self, sent: float, where: str) -> None:
        """
        Raises:
            InputError: beyond a century.
        """
        if self._ns(sent) > LAST_NS:
            fix = f"say its unit with {UNIT_FLAG}"
            raise InputError("is too large", file=where, key="timestamp", value=sent, fix=fix)

    def _session_of(self, row: dict[str, Any]) -> Any:
        if not self.spelling.chats:
            return row.get("session_id")
        chat, parent = str(row.get("chat_id")), str(row.get("parent_chat_id"))
        first = self._chats.get(parent, chat)
        self._chats[chat] = first
        return first

    def table(self, request_id: list[str] | None) -> RequestTable:
        prompts, known = self._accumulated()
        content, contents = contents_of(self._ids, self._prompts, self.block_tokens, known)
        table = RequestTable.build(
            np.asarray(self.arrivals),
            np.asarray(prompts, dtype=np.int64),
            np.asarray(self._outputs),
            content=content,
            contents=contents,
            request_id=request_id,
        )
        if any(self._delayed) and self._reading.session_mode is None:
            self._reading.session_mode = CLOSED
        return self.turns.of(table, self._reading)

    def _accumulated(self) -> tuple[list[int], list[Content | None]]:
        """Prompts in full, and the runs of those in conversations with additions."""
        prompts, runs = list(self._prompts), list[Content | None](repeat(None, len(self._prompts)))
        additions, before = set(self._additions()), dict[Any, int]()
        joined = {self._session[row] for row in additions}
        for row, session in enumerate(self._session):
            if session not in joined:
                continue
            own = runs_of_ids(self._ids[row], prompts[row], self.block_tokens)
            own = own or ((f"{session}, turn {row}", prompts[row]),)
            if row in additions:
                last = before[session]
                own = (*(runs[last] or ()), (f"{session}, answer {last}", self._outputs[last]), *own)
                prompts[row] += prompts[last] + self._outputs[last]
            runs[row], before[session] = own, row
        if additions:
            several = "later turn has" if len(additions) == 1 else "later turns have"
            self._reading.note(f"{len(additions):,} {several} only an addition: the conversation is sent")
        return prompts, runs

    def _additions(self) -> Iterator[int]:
        """Rows of later turns that have only their addition to the conversation."""
        first, before, unclear, grows = dict[Any, int](), dict[Any, int](), list[int](), True
        for row, (session, delayed) in enumerate(zip(self._session, self._delayed, strict=True)):
            if delayed and session in before:
                last = before[session]
                if self._ids[row] and self._ids[last]:
                    if self._ids[row][0] != self._ids[first[session]][0]:
                        yield row
                else:
                    unclear.append(row)
                    grows &= self._prompts[row] >= self._prompts[last] + self._outputs[last]
            first.setdefault(session, row)
            before[session] = row
        yield from () if grows else unclear


def _row(line: str, where: str, rows: _Rows) -> dict[str, Any]:
    row = parse_json(line, where, fix="write one object per line")
    if not isinstance(row, dict):
        raise InputError("not a JSON object", file=where, fix="write one object per line")
    _check_keys(row, where, rows)
    for key, most in (("timestamp", LAST_NS), ("delay", LAST_NS // MS_NS)):
        if key in row:
            _check_number(row, key, 0, most, where, whole=False)
    if "timestamp" in row:
        rows.check_time(row["timestamp"], where)
    _check_number(row, "input_length", 1, MAX_TOKENS, where)
    _check_number(row, "output_length", 0, MAX_TOKENS, where)
    if "hash_ids" in row:
        check_ids(row["hash_ids"], row["input_length"], rows.block_tokens, where, whole_only=rows.sure)
    return row


def _check_name(row: dict[str, Any], names: dict[str, int], path: Path, line: int) -> None:
    """Refuse a duplicate request name; `names` maps earlier names to their lines."""
    name, where = row.get("request_id"), f"{path}:{line}"
    if name is None or name == "":
        return
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise InputError("must be a text or a whole number", file=where, key="request_id", value=name)
    if str(name) in names:
        problem = f"the same id as in line {names[str(name)]}"
        raise InputError(problem, file=where, key="request_id", value=name, fix="give every request its own")
    names[str(name)] = line


def _check_keys(row: dict[str, Any], where: str, rows: _Rows) -> None:
    check_session(row.get("session_id"), where)
    keys = (*KEYS, *WITHOUT_EFFECT, *rows.spelling.more)
    if rows.spelling.chats:
        for key in OF_CHATS[:2]:
            check_session(row.get(key), where)
    timed = "delay" not in row or not rows.turns.known(row.get("session_id"))
    for key in KEYS[not timed : 3]:
        if key not in row:
            raise InputError(
                "missing key", file=where, key=key, fix=f"every line needs {', '.join(KEYS[:3])}"
            )
    for key in row:
        if key in NOT_YET:
            problem, fix = "requests that wait for any others are not supported", "remove the key"
            raise InputError(problem, file=where, key=key, fix=fix)
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            fix = f"did you mean {near[0]}?" if near else f"the format has {', '.join(keys)}"
            raise InputError("unknown key", file=where, key=key, fix=fix)


def _check_number(
    row: dict[str, Any], key: str, low: int, high: int, where: str, *, whole: bool = True
) -> None:
    value = row[key]
    kind = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind):
        raise InputError(f"not a {'whole ' if whole else ''}number", file=where, key=key, value=value)
    if not low <= value <= high:
        problem = "is too large" if value > low else f"must be at least {low}"
        raise InputError(problem, file=where, key=key, value=value)
