"""Parquet: every column of a table of requests, or any other table whose columns are named.

What is written has the columns of `COLUMNS` and loses nothing; what comes from elsewhere is read with
`--columns`. It needs pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.core.bounds import LAST_NS, MOST_TOKENS
from blis_py.errors import InputError
from blis_py.files.arrow import pyarrow
from blis_py.requests.table import Content, Ints, Labels, RequestTable
from blis_py.traces.files import ROWS_AT_ONCE
from blis_py.traces.gathered import FAILED
from blis_py.traces.mapped import LABELS, UNITS_NS, check_roles, since_the_first
from blis_py.traces.reading import Reading

_NUMBERS: dict[str, Callable[[RequestTable], Ints]] = {
    "arrival_ns": lambda table: table.arrival_ns,
    "input_tokens": lambda table: table.prompt_tokens,
    "output_tokens": lambda table: table.output_tokens,
    "max_tokens": lambda table: table.max_tokens,
    "deadline_ns": lambda table: table.deadline_ns,
    "slo_target_ns": lambda table: table.slo_target_ns,
    "prefix_tokens": lambda table: table.prefix_tokens,
}
_NAMES: dict[str, Callable[[RequestTable], Labels]] = {
    "slo_class": lambda table: table.slo_class,
    "tenant_id": lambda table: table.tenant,
    "client_id": lambda table: table.client,
    "model": lambda table: table.model,
    "prefix_group": lambda table: table.prefix_group,
}
COLUMNS = (*_NUMBERS, *_NAMES, "request_id", "streaming", "content")


def column_names(path: Path) -> tuple[str, ...]:
    """The columns of a file."""
    return tuple(_open(path).schema_arrow.names)


def write(table: RequestTable, path: Path) -> None:
    """All columns of a table, the shared beginnings of prompts as JSON."""
    from blis_py.outputs.staging import replacing

    pa = pyarrow()
    contents = [json.dumps(runs, separators=(",", ":")) for runs in table.contents]
    with replacing(path) as target:
        writer = None
        for start in range(0, max(len(table), 1), ROWS_AT_ONCE):
            piece = slice(start, start + ROWS_AT_ONCE)
            rows: dict[str, Any] = {name: column(table)[piece] for name, column in _NUMBERS.items()}
            for name, labels in _NAMES.items():
                codes = pa.array(labels(table).codes[piece])
                rows[name] = pa.DictionaryArray.from_arrays(codes, pa.array(labels(table).names, pa.string()))
            rows["request_id"] = pa.array(table.ids(piece), pa.string())
            rows["streaming"] = table.streaming[piece]
            index = table.content[piece].tolist()
            rows["content"] = pa.array([contents[at] if at >= 0 else "" for at in index], pa.string())
            batch = pa.table(rows)
            if writer is None:
                writer = pa.parquet.ParquetWriter(target, batch.schema)
            writer.write_table(batch)
        assert writer is not None
        writer.close()


def read(path: Path, reading: Reading) -> RequestTable:
    """A table as `write` left it.

    Raises:
        InputError: a column is missing, or holds what cannot be a request.
    """
    limits = {"arrival_ns": (0, LAST_NS), "deadline_ns": (-1, LAST_NS), "slo_target_ns": (0, LAST_NS)}
    least = {"input_tokens": 1, "output_tokens": 1}
    whole = _open(path).read(columns=list(COLUMNS))
    numbers = {}
    for name in _NUMBERS:
        low, high = limits.get(name, (least.get(name, 0), MOST_TOKENS))
        column = np.asarray(whole[name].to_numpy())
        if column.dtype.kind not in "iu":
            raise InputError("not whole numbers", file=path, key=name, value=str(column.dtype))
        if ((column < low) | (column > high)).any():
            raise InputError(f"must be from {low} to {high}", file=path, key=name)
        numbers[name] = column.astype(np.int64)
    names = {name: Labels.of(cell or "" for cell in whole[name].to_pylist()) for name in _NAMES}
    content, contents = _contents(path, whole["content"].to_pylist())
    ids = whole["request_id"].to_pylist()
    return RequestTable.build(
        numbers["arrival_ns"],
        numbers["input_tokens"],
        numbers["output_tokens"],
        max_tokens=numbers["max_tokens"],
        deadline_ns=numbers["deadline_ns"],
        slo_target_ns=numbers["slo_target_ns"],
        prefix_tokens=numbers["prefix_tokens"],
        slo_class=names["slo_class"],
        tenant=names["tenant_id"],
        client=names["client_id"],
        model=names["model"],
        prefix_group=names["prefix_group"],
        streaming=np.asarray(whole["streaming"].to_numpy(zero_copy_only=False), dtype=np.bool_),
        content=content,
        contents=contents,
        request_id=None if ids == [f"request_{row}" for row in range(len(ids))] else ids,
    )


def _contents(path: Path, cells: list[str]) -> tuple[Ints, tuple[Content, ...]]:
    from blis_py.traces.tracev2 import runs_of

    known: dict[Content, int] = {}
    by_cell: dict[str, int] = {}
    for cell in dict.fromkeys(cells):
        runs = runs_of(cell or "")
        if runs is None:
            problem = "not a list of [segment, tokens] pairs"
            raise InputError(problem, file=path, key="content", value=cell)
        by_cell[cell] = known.setdefault(runs, len(known)) if runs else -1
    return np.fromiter((by_cell[cell] for cell in cells), dtype=np.int64, count=len(cells)), tuple(known)


def read_mapped(path: Path, reading: Reading) -> RequestTable:
    """The requests of a file whose columns `reading.columns` names.

    Raises:
        InputError: a column is missing, or a cell cannot be what it should be; with the row.
    """
    columns = reading.columns
    check_roles(columns)
    there = column_names(path)
    for role, name in columns.items():
        if name not in there:
            fix = f"there are {', '.join(there)}"
            raise InputError("missing column", file=path, key=f"--columns {role}={name}", fix=fix)
    pieces: dict[str, list[Any]] = {role: [] for role in columns}
    done = 0
    for batch in _open(path).iter_batches(ROWS_AT_ONCE, columns=list(columns.values())):
        for role, values in _good_rows(path, batch, columns, reading, done).items():
            pieces[role].append(values)
        done += len(batch)
    if not sum(map(len, pieces["input"])):
        raise InputError("no requests in it", file=path, fix="give a file with at least one row")
    return _of_pieces({role: np.concatenate(parts) for role, parts in pieces.items()}, reading)


def _good_rows(
    path: Path, batch: Any, columns: Mapping[str, str], reading: Reading, done: int
) -> dict[str, NDArray[Any]]:
    """The cells of the rows that are good, by role."""
    values = {}
    good = np.ones(len(batch), dtype=np.bool_)
    for role, name in columns.items():
        values[role], bad, problem = _cells(role, batch.column(name), reading)
        bad &= good
        if bad.any():
            row = int(np.argmax(bad))
            shown = batch.column(name)[row].as_py()
            place = f"{path}: row {done + row + 1}"
            error = InputError(problem, file=place, key=name, value=shown, fix="correct the row")
            reading.bad.refuse(error, done + row, int(bad.sum()))
            good &= ~bad
    return {role: cells[good] for role, cells in values.items()}


def _cells(role: str, column: Any, reading: Reading) -> tuple[NDArray[Any], NDArray[np.bool_], str]:
    """The cells of a column, which of them are bad, and what is wrong with these."""
    pa = pyarrow()
    if role in LABELS or role == "request_id":
        texts = column.cast(pa.string()).to_pylist()
        cells = np.array([text or "" for text in texts], dtype=object)
        return cells, np.zeros(len(cells), dtype=np.bool_), ""
    if role == "arrival" and pa.types.is_timestamp(column.type):
        moments = column.cast(pa.timestamp("ns", column.type.tz), safe=False).cast(pa.int64()).fill_null(-1)
        since_1970 = moments.to_numpy(zero_copy_only=False)
        return since_1970, since_1970 < 0, "not a time since 1970"
    unit = UNITS_NS[reading.time_unit] if role == "arrival" else 1.0
    try:
        numbers = np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)) * unit
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return np.zeros(len(column), dtype=np.int64), np.ones(len(column), dtype=np.bool_), "not a number"
    if role == "arrival":
        bad, problem = ~((numbers >= 0) & (numbers <= LAST_NS)), "not a time within a century"
    else:
        least = 1 if role == "input" else 0
        bad = ~((numbers >= least) & (numbers <= MOST_TOKENS) & (np.floor(numbers) == numbers))
        problem = f"not a whole number of at least {least}"
    return np.where(bad, 0, np.rint(np.where(bad, 0, numbers))).astype(np.int64), bad, problem


def _of_pieces(columns: dict[str, NDArray[Any]], reading: Reading) -> RequestTable:
    kept = columns["output"] > 0
    reading.left_out(int((~kept).sum()), FAILED)
    columns = {role: cells[kept] for role, cells in columns.items()}
    reading.has_times = "arrival" in columns
    arrival_ns = columns.get("arrival", np.zeros(len(columns["input"]), dtype=np.int64))
    labels = {role: Labels.of(columns[role]) if role in columns else None for role in LABELS}
    return RequestTable.build(
        since_the_first(arrival_ns, reading),
        columns["input"],
        columns["output"],
        max_tokens=columns.get("max_tokens"),
        slo_class=labels["slo_class"],
        tenant=labels["tenant_id"],
        client=labels["client_id"],
        model=labels["model"],
        prefix_group=labels["prefix_group"],
        request_id=columns["request_id"].tolist() if "request_id" in columns else None,
    )


def _open(path: Path) -> Any:
    pa = pyarrow()
    try:
        return pa.parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"not a Parquet file: {error}", file=path, fix="copy it again") from None
