"""Mooncake traces: JSON lines with prefix identity.

One object per line: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`, one id per 512 tokens of
prompt (the last block may be shorter). Equal leading ids mean equal leading tokens.
Source: github.com/kvcache-ai/Mooncake, Apache-2.0 (Qin et al., FAST 2025).
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.errors import InputError
from blis_py.traces.files import reading
from blis_py.workload.table import Content, Ints, RequestTable

BLOCK_TOKENS = 512
KEYS = ("timestamp", "input_length", "output_length", "hash_ids", "request_id")
NOT_YET = ("session_id", "delay", "wait_for", "tool_wait_ms")
"""Keys of multi-turn variants of the format."""


def recognises(first_line: str) -> bool:
    return first_line.lstrip().startswith("{")


def read(path: Path, header: Path | None = None) -> RequestTable:
    """The requests of the trace, in the order of the file.

    A replaying client asks for exactly the recorded output, so `max_tokens` is `output_tokens`.

    Raises:
        InputError: with file, line, key and value.
    """
    if header is not None:
        raise InputError("a Mooncake trace has no header file", file=header, fix="leave it out")
    arrivals: list[int] = []
    prompts: list[int] = []
    outputs: list[int] = []
    blocks: list[list[int]] = []
    names: list[str] = []
    with reading(path) as text:
        for number, line in enumerate(text, 1):
            if not line.strip():
                continue
            row = _row(line, f"{path}:{number}")
            arrivals.append(round(row["timestamp"] * 1_000_000))
            prompts.append(row["input_length"])
            outputs.append(row["output_length"])
            blocks.append(row.get("hash_ids", []))
            names.append(str(row.get("request_id", "")))
    if not arrivals:
        raise InputError("no requests in the trace", file=path, fix="give a file with at least one line")
    content, contents = _contents(blocks, prompts)
    return RequestTable.build(
        np.array(arrivals, dtype=np.int64),
        np.array(prompts, dtype=np.int64),
        np.array(outputs, dtype=np.int64),
        content=content,
        contents=contents,
        request_id=names if all(names) else None,
    )


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"not JSON: {error}", file=where, fix="write one object per line") from None
    if not isinstance(row, dict):
        raise InputError("not a JSON object", file=where, fix="write one object per line")
    _check_keys(row, where)
    _check_number(row, "timestamp", 0, where, whole=False)
    _check_number(row, "input_length", 1, where)
    _check_number(row, "output_length", 1, where)
    if "hash_ids" in row:
        _check_blocks(row["hash_ids"], row["input_length"], where)
    return row


def _check_keys(row: dict[str, Any], where: str) -> None:
    for key in KEYS[:3]:
        if key not in row:
            raise InputError(
                "missing key", file=where, key=key, fix=f"every line needs {', '.join(KEYS[:3])}"
            )
    for key in row:
        if key in NOT_YET:
            raise InputError(
                "multi-turn traces are not supported yet", file=where, key=key, fix="remove the key"
            )
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1)
            fix = f"did you mean {near[0]}?" if near else f"the format has {', '.join(KEYS)}"
            raise InputError("unknown key", file=where, key=key, fix=fix)


def _check_number(row: dict[str, Any], key: str, low: int, where: str, *, whole: bool = True) -> None:
    value = row[key]
    kind = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind):
        raise InputError(f"not a {'whole ' if whole else ''}number", file=where, key=key, value=value)
    if not low <= value < 2**42:
        problem = "is too large" if value > low else f"must be at least {low}"
        raise InputError(problem, file=where, key=key, value=value)


def _check_blocks(ids: Any, input_length: int, where: str) -> None:
    if not isinstance(ids, list) or not all(type(block) is int for block in ids):
        raise InputError("must be a list of whole numbers", file=where, key="hash_ids")
    blocks = -(-input_length // BLOCK_TOKENS)
    if len(ids) != blocks:
        raise InputError(
            f"{len(ids)} ids for {input_length} tokens",
            file=where,
            key="hash_ids",
            fix=f"give one per {BLOCK_TOKENS} tokens: {blocks}",
        )


def _contents(blocks: list[list[int]], prompts: list[int]) -> tuple[Ints, list[Content]]:
    """Runs of blocks up to the last one that another request has too; the rest is the request's own."""
    uses = Counter(block for ids in blocks for block in ids)
    contents: dict[Content, int] = {}
    content = np.full(len(blocks), -1, dtype=np.int64)
    for row, (ids, prompt) in enumerate(zip(blocks, prompts, strict=True)):
        shared = len(ids)
        while shared and uses[ids[shared - 1]] == 1:
            shared -= 1
        if shared:
            runs = tuple((ids[at], min(BLOCK_TOKENS, prompt - at * BLOCK_TOKENS)) for at in range(shared))
            content[row] = contents.setdefault(runs, len(contents))
    return content, list(contents)
