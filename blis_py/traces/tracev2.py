"""BLIS TraceV2: a YAML header and a CSV with one row per request, read and written.

Reading follows the peer's fixed replay: every row is replayed, whatever its `status`; the arrival is
`send_time_us` where that is positive, else `arrival_time_us`; `input_tokens` counts the tokens after the
shared prefix, and `server_input_tokens`, where known, replaces it for rows without a prefix group; the
prefix of a group is as long as the `prefix_length` of its first row says; the client's budget is
`output_tokens`. Columns that describe the original run (`first_chunk_time_us`, `status`, ...) or
closed-loop sessions (`session_id`, `round_index`, `think_time_us`) do not change a fixed replay.

Writing adds columns of ours at the end, only where the standard ones cannot hold a value: `max_tokens` (a
budget other than the output length), `content` (shared prompt runs other than a prefix group, as JSON),
and `arrival_time_ns`, `deadline_ns`, `slo_target_ns` (times that are no whole microseconds). Then reading
what was written gives the same table.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError
from blis_py.traces.files import (
    BadCell,
    Kind,
    csv_header,
    integers,
    labels,
    line_of_row,
    read_columns,
)
from blis_py.traces.tracev2_header import DIFFUSION, read_header
from blis_py.traces.tracev2_write import write
from blis_py.workload.lengths import MOST_TOKENS
from blis_py.workload.table import Content, Ints, Labels, RequestTable

__all__ = ["DIFFUSION", "data_beside", "header_beside", "read", "read_header", "recognises", "write"]

LAST_NS = 2**62
LAST_US = LAST_NS // 1000
TEXT = ("client_id", "tenant_id", "slo_class", "prefix_group", "model")
NUMBERS = {
    "request_id": integers(),
    "prefix_length": integers(high=MOST_TOKENS),
    "input_tokens": integers(high=MOST_TOKENS),
    "output_tokens": integers(high=MOST_TOKENS),
    "server_input_tokens": integers(high=MOST_TOKENS),
    "max_tokens": integers(high=MOST_TOKENS),
    "deadline_us": integers(high=LAST_US),
    "slo_target_us": integers(high=LAST_US),
    "arrival_time_us": integers(-LAST_US, LAST_US),
    "send_time_us": integers(-LAST_US, LAST_US),
    "arrival_time_ns": integers(high=LAST_NS),
    "deadline_ns": integers(-1, LAST_NS),
    "slo_target_ns": integers(high=LAST_NS),
}
WITHOUT_EFFECT = (
    *("vllm_priority", "session_id", "round_index", "think_time_us", "x_request_id", "reason_ratio"),
    *("text_tokens", "image_tokens", "audio_tokens", "video_tokens"),
    *("first_chunk_time_us", "last_chunk_time_us", "num_chunks", "status", "error_message", "finish_reason"),
)
REQUIRED = ("request_id", "input_tokens", "output_tokens", "arrival_time_us")
KNOWN = {*TEXT, *NUMBERS, *WITHOUT_EFFECT, "content", "streaming", "adapter"}


SPELLINGS = {"true": True, "false": False, "1": True, "0": False, "t": True, "f": False, "": False}


def _to_bool(cells: NDArray[np.object_]) -> NDArray[np.bool_]:
    meaning = {cell: SPELLINGS.get(cell.lower()) for cell in set(cells.tolist())}
    if None in meaning.values():
        bad = next(index for index, cell in enumerate(cells) if meaning[cell] is None)
        raise BadCell("not true or false", bad)
    return np.fromiter(map(meaning.__getitem__, cells.tolist()), dtype=np.bool_, count=len(cells))


def _empty(cells: NDArray[np.object_]) -> None:
    if np.any(cells != ""):
        raise BadCell("LoRA adapters are not supported yet", int(np.argmax(cells != "")), "empty the column")


BOOLEAN = Kind("O", str, "not text", _to_bool)
NO_ADAPTER = Kind("O", str, "not text", _empty)


def recognises(first_line: str) -> bool:
    return {"request_id", "arrival_time_us"} <= {name.strip() for name in first_line.split(",")}


def data_beside(header: Path) -> Path:
    """The CSV that belongs to a header `x.yaml`: `x.csv` or `x.csv.gz` in the same folder."""
    candidates = [header.with_suffix(".csv"), header.with_suffix(".csv.gz")]
    for path in candidates:
        if path.exists():
            return path
    raise InputError(
        "no CSV beside this trace header", file=header, fix=f"put {candidates[0].name} there or name the CSV"
    )


def header_beside(data: Path) -> Path:
    """The header that belongs to `x.csv` or `x.csv.gz`: `x.yaml` or `x.yml` in the same folder."""
    stem = data.name.removesuffix(".gz").removesuffix(".csv")
    for suffix in (".yaml", ".yml"):
        if (path := data.with_name(stem + suffix)).exists():
            return path
    raise InputError(
        "a TraceV2 needs its header", file=data, fix=f"put {stem}.yaml beside it or give --trace-header"
    )


def read(path: Path, header: Path | None = None) -> RequestTable:
    """The requests of a TraceV2, in the order of the file, named `request_<request_id>`.

    An output length of 0 (a request that failed when it was recorded) is replayed as one token without
    a budget.

    Raises:
        InputError: with file, line, column and value; also for features that are not supported yet
            (`adapter`, accumulated session context).
    """
    read_header(header if header is not None else header_beside(path))
    _check_names(path)
    kinds, joins = zip(*(labels() for _ in (*TEXT, "content")), strict=True)
    joined = dict(zip((*TEXT, "content"), joins, strict=True))
    columns = read_columns(
        path,
        {**dict(zip(joined, kinds, strict=True)), **NUMBERS, "streaming": BOOLEAN, "adapter": NO_ADAPTER},
        optional=KNOWN - set(REQUIRED),
    )
    rows = sum(map(len, columns["request_id"]))

    def whole(name: str) -> Ints:
        return np.concatenate(columns[name]) if name in columns else np.zeros(rows, dtype=np.int64)

    def text(name: str) -> Labels:
        return joined[name](columns[name]) if name in columns else Labels.constant("", rows)

    groups, output = text("prefix_group"), whole("output_tokens")
    prefix = _prefix_tokens(groups, whole("prefix_length"))
    content, contents = _contents(path, text("content") if "content" in columns else None, groups, prefix)
    return RequestTable.build(
        _arrival_ns(path, columns),
        _prompt_tokens(path, groups, prefix, whole("input_tokens"), whole("server_input_tokens")),
        np.maximum(output, 1),
        max_tokens=whole("max_tokens") if "max_tokens" in columns else output,
        deadline_ns=_deadline_ns(columns, rows),
        slo_class=text("slo_class"),
        tenant=text("tenant_id"),
        client=text("client_id"),
        model=text("model"),
        prefix_group=groups,
        prefix_tokens=prefix,
        content=content,
        contents=contents,
        streaming=np.concatenate(columns["streaming"]) if "streaming" in columns else None,
        slo_target_ns=whole("slo_target_ns") if "slo_target_ns" in columns else whole("slo_target_us") * 1000,
        request_id=_names(path, whole("request_id")),
    )


def _check_names(path: Path) -> None:
    header = csv_header(path)
    for name in header:
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, 1)
            fix = f"did you mean {near[0]}?" if near else "remove the column"
            raise InputError("unknown column", file=f"{path}:1", key=name, fix=fix)
        if header.count(name) > 1:
            raise InputError("column given twice", file=f"{path}:1", key=name, fix="keep one")


def _prefix_tokens(groups: Labels, prefix_length: Ints) -> Ints:
    """Length of each row's shared prefix: that of the first row of its group."""
    per_group = np.zeros(len(groups.names), dtype=np.int64)
    per_group[groups.codes[::-1]] = prefix_length[::-1]  # backwards: the first row is assigned last
    if "" in groups.names:
        per_group[groups.names.index("")] = 0
    tokens: Ints = per_group[groups.codes]
    return tokens


def _prompt_tokens(path: Path, groups: Labels, prefix: Ints, suffix: Ints, served: Ints) -> Ints:
    grouped = np.array([name != "" for name in groups.names], dtype=np.bool_)[groups.codes]
    prompt: Ints = prefix + np.where((served > 0) & ~grouped, served, suffix)
    if prompt.min() < 1:
        raise _row_error(path, int(np.argmax(prompt < 1)), "an empty prompt", "input_tokens", 0)
    return prompt


def _row_error(path: Path, row: int, problem: str, key: str, value: object) -> InputError:
    return InputError(
        problem, file=f"{path}:{line_of_row(path, row)}", key=key, value=value, fix="correct the row"
    )


def _arrival_ns(path: Path, columns: dict[str, list[Any]]) -> Ints:
    if "arrival_time_ns" in columns:
        return np.concatenate(columns["arrival_time_ns"])
    arrival_us = np.concatenate(columns["arrival_time_us"])
    if "send_time_us" in columns:
        sent_us = np.concatenate(columns["send_time_us"])
        arrival_us = np.where(sent_us > 0, sent_us, arrival_us)
    if arrival_us.min() < 0:
        row = int(np.argmax(arrival_us < 0))
        raise _row_error(path, row, "must not be negative", "arrival_time_us", int(arrival_us[row]))
    return np.asarray(arrival_us * 1000, dtype=np.int64)


def _deadline_ns(columns: dict[str, list[Any]], rows: int) -> Ints:
    if "deadline_ns" in columns:
        return np.concatenate(columns["deadline_ns"])
    if "deadline_us" not in columns:
        return np.full(rows, -1, dtype=np.int64)
    deadline_us = np.concatenate(columns["deadline_us"])
    return np.where(deadline_us > 0, deadline_us * 1000, -1)


def _names(path: Path, ids: Ints) -> list[str] | None:
    if np.array_equal(ids, np.arange(len(ids))):
        return None
    if len(np.unique(ids)) < len(ids):
        firsts = np.unique(ids, return_index=True)[1]
        row = int(np.setdiff1d(np.arange(len(ids)), firsts)[0])
        raise _row_error(path, row, "the same id as a row before", "request_id", int(ids[row]))
    return [f"request_{number}" for number in ids.tolist()]


def _contents(
    path: Path, own: Labels | None, groups: Labels, prefix: Ints
) -> tuple[Ints, tuple[Content, ...]]:
    """What each prompt shares: its `content` cell if it has one, else the prefix of its group."""
    known: dict[Content, int] = {}
    per_group = np.full(len(groups.names), -1, dtype=np.int64)
    shared = np.flatnonzero(prefix > 0)
    for code in np.unique(groups.codes[shared]).tolist():
        row = int(shared[np.argmax(groups.codes[shared] == code)])
        per_group[code] = known.setdefault(((groups.names[code], int(prefix[row])),), len(known))
    content = per_group[groups.codes]
    if own is None:
        return content, tuple(known)
    per_cell = np.full(len(own.names), -1, dtype=np.int64)
    for code, cell in enumerate(own.names):
        runs = _runs(path, own, code, cell) if cell else ()
        per_cell[code] = known.setdefault(runs, len(known)) if runs else -1
    stated = np.array([cell != "" for cell in own.names], dtype=np.bool_)[own.codes]
    return np.where(stated, per_cell[own.codes], content), tuple(known)


def _runs(path: Path, own: Labels, code: int, cell: str) -> Content:
    try:
        runs = tuple((segment, tokens) for segment, tokens in json.loads(cell))
    except (ValueError, TypeError):
        runs = (("", 0),)
    if all(type(segment) in (str, int) and type(tokens) is int and tokens > 0 for segment, tokens in runs):
        return runs
    row = int(np.argmax(own.codes == code))
    raise _row_error(path, row, "not a list of [segment, tokens] pairs", "content", cell)
