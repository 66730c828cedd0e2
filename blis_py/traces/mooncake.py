"""Mooncake traces: JSON lines with prefix identity.

One object per line: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`, one id per 512 tokens of
prompt (the last block may be shorter). Equal leading ids mean equal leading tokens.
Sessions: rows with the same `session_id` are turns, in the order of the file, each with its whole prompt; a
turn after the first may have a `delay` (ms after the previous answer) in place of its `timestamp`.
Source: github.com/kvcache-ai/Mooncake, Apache-2.0 (Qin et al., FAST 2025).
"""

from __future__ import annotations

import difflib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.core.bounds import LAST_NS, MAX_TOKENS
from blis_py.errors import InputError
from blis_py.files.json_files import parse_json
from blis_py.files.opening import reading as opened
from blis_py.requests.table import Content, Ints, RequestTable
from blis_py.traces._gathered import FAILED
from blis_py.traces._gathered_turns import GatheredTurns, check_session
from blis_py.traces.reading import Reading

BLOCK_TOKENS = 512
MS_NS = 1_000_000
KEYS = ("timestamp", "input_length", "output_length", "hash_ids", "request_id", "session_id", "delay")
NOT_YET = ("wait_for", "tool_wait_ms")
"""Keys of format variants with dependencies between arbitrary requests."""


def read(path: Path, reading: Reading) -> RequestTable:
    """The requests of the trace, in the order of the file.

    A replaying client asks for exactly the recorded output, so `max_tokens` is `output_tokens`. Requests
    without output failed when they were recorded; they are left out and counted.

    Raises:
        InputError: with file, line, key and value.
    """
    bad, rows = reading.bad, _Rows()
    names: dict[str, int] = {}
    with opened(path) as text:
        for number, line in enumerate(text, 1):
            if not line.strip():
                continue
            try:
                row = _row(line, f"{path}:{number}", rows.turns)
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
    return rows.turns.of(rows.table(list(names) or None), reading)


class _Rows:
    """Requests gathered line by line."""

    def __init__(self) -> None:
        self.failed = 0
        """Requests without output."""
        self.arrivals = array("q")
        self.turns = GatheredTurns()
        self._prompts, self._outputs = array("q"), array("q")
        self._blocks, self._ends = array("q"), array("q", [0])

    def add(self, row: dict[str, Any]) -> None:
        """A checked line."""
        turns, session, sent_ms = self.turns, row.get("session_id"), row.get("timestamp")
        sent_ns = turns.start_ns(session) if sent_ms is None else round(sent_ms * MS_NS)
        turns.begins(session, sent_ns)
        if row["output_length"] == 0:
            self.failed += 1
            return
        turns.add(session, round(row.get("delay", 0) * MS_NS), sent_ms is not None)
        self.arrivals.append(sent_ns)
        self._prompts.append(row["input_length"])
        self._outputs.append(row["output_length"])
        self._blocks.extend(row.get("hash_ids", ()))
        self._ends.append(len(self._blocks))

    def table(self, request_id: list[str] | None) -> RequestTable:
        content, contents = _contents(np.asarray(self._blocks), self._ends, self._prompts)
        return RequestTable.build(
            np.asarray(self.arrivals),
            np.asarray(self._prompts),
            np.asarray(self._outputs),
            content=content,
            contents=contents,
            request_id=request_id,
        )


def _row(line: str, where: str, turns: GatheredTurns) -> dict[str, Any]:
    row = parse_json(line, where, fix="write one object per line")
    if not isinstance(row, dict):
        raise InputError("not a JSON object", file=where, fix="write one object per line")
    _check_keys(row, where, turns)
    for key in ("timestamp", "delay"):
        if key in row:
            _check_number(row, key, 0, LAST_NS // MS_NS, where, whole=False)
    _check_number(row, "input_length", 1, MAX_TOKENS, where)
    _check_number(row, "output_length", 0, MAX_TOKENS, where)
    if "hash_ids" in row:
        _check_blocks(row["hash_ids"], row["input_length"], where)
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


def _check_keys(row: dict[str, Any], where: str, turns: GatheredTurns) -> None:
    check_session(row.get("session_id"), where)
    timed = "delay" not in row or not turns.known(row.get("session_id"))
    for key in KEYS[not timed : 3]:
        if key not in row:
            raise InputError(
                "missing key", file=where, key=key, fix=f"every line needs {', '.join(KEYS[:3])}"
            )
    for key in row:
        if key in NOT_YET:
            problem, fix = "requests that wait for any others are not supported", "remove the key"
            raise InputError(problem, file=where, key=key, fix=fix)
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1)
            fix = f"did you mean {near[0]}?" if near else f"the format has {', '.join(KEYS)}"
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


def _check_blocks(ids: Any, input_length: int, where: str) -> None:
    if not isinstance(ids, list) or not all(type(block) is int and abs(block) < 2**63 for block in ids):
        raise InputError("must be a list of whole numbers of 64 bits", file=where, key="hash_ids")
    blocks = -(-input_length // BLOCK_TOKENS)
    if len(ids) != blocks:
        raise InputError(
            f"{len(ids)} ids for {input_length} tokens",
            file=where,
            key="hash_ids",
            fix=f"give one per {BLOCK_TOKENS} tokens: {blocks}",
        )


def _contents(blocks: Ints, ends: Sequence[int], prompts: Sequence[int]) -> tuple[Ints, list[Content]]:
    """Block runs up to the last block shared with another request; the rest is unique to the request.

    Args:
        blocks: of all requests, concatenated; those of a row lie between two `ends`.
    """
    in_order = np.sort(blocks)
    shared = np.isin(blocks, np.unique(in_order[1:][in_order[1:] == in_order[:-1]]))
    contents: dict[Content, int] = {}
    content = np.full(len(prompts), -1, dtype=np.int64)
    for row, (start, end, prompt) in enumerate(zip(ends, ends[1:], prompts, strict=False)):
        places = np.flatnonzero(shared[start:end])
        if len(places):
            ids = blocks[start : start + places[-1] + 1].tolist()
            runs = tuple((id, min(BLOCK_TOKENS, prompt - at * BLOCK_TOKENS)) for at, id in enumerate(ids))
            content[row] = contents.setdefault(runs, len(contents))
    return content, list(contents)
