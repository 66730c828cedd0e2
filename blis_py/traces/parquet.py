"""Parquet: every column of a table of requests, or any other table whose columns are named.

Files written here have the columns of `COLUMNS` and are lossless; others are read with `--columns`. Needs
pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.core.bounds import LAST_NS, MAX_TOKENS
from blis_py.errors import InputError
from blis_py.files.parquet_files import open_parquet, pyarrow
from blis_py.outputs.staging import replacing
from blis_py.requests.table import Content, Ints, Labels, RequestTable
from blis_py.traces._conversations import in_conversations
from blis_py.traces._gathered import FAILED
from blis_py.traces._mapped import LABELS, SESSION, TURN, check_roles
from blis_py.traces._units import TraceClock
from blis_py.traces.files import ROWS_AT_ONCE
from blis_py.traces.kinds import joined, without_room
from blis_py.traces.reading import Reading
from blis_py.traces.tracev2 import runs_of

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


def write(table: RequestTable, path: Path) -> None:
    """Write all columns of a table, the shared prefixes of prompts as JSON."""
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


_LIMITS = {
    "arrival_ns": (0, LAST_NS),
    "deadline_ns": (-1, LAST_NS),
    "slo_target_ns": (0, LAST_NS),
    "input_tokens": (1, MAX_TOKENS),
    "output_tokens": (1, MAX_TOKENS),
}


def read(path: Path, reading: Reading) -> RequestTable:
    """A table as written by `write`.

    Raises:
        InputError: a missing column, or an invalid value.
    """
    file = open_parquet(path)
    for name in COLUMNS:
        if name not in file.schema_arrow.names:
            raise InputError("missing column", file=path, key=name, fix="name its columns with --columns")
    numbers: dict[str, list[Ints]] = {name: [] for name in _NUMBERS}
    coded = {name: _Coded() for name in (*_NAMES, "content")}
    streaming, ids, done = [], _Ids(), 0
    for batch in file.iter_batches(ROWS_AT_ONCE, columns=list(COLUMNS)):
        for name, parts in numbers.items():
            parts.append(_whole_numbers(path, name, batch.column(name)))
        for name, codes in coded.items():
            codes.add(batch.column(name))
        streaming.append(np.asarray(batch.column("streaming").to_numpy(zero_copy_only=False), dtype=np.bool_))
        ids.add(batch.column("request_id"), done)
        done += len(batch)
    if not done:
        raise InputError("no requests in it", file=path, fix="give a file with at least one row")
    reading.requests_models = True
    whole = {name: joined(numbers.pop(name)) for name in _NUMBERS}
    content, contents = _contents(path, coded["content"].labels())
    return RequestTable.build(
        whole["arrival_ns"],
        whole["input_tokens"],
        whole["output_tokens"],
        max_tokens=whole["max_tokens"],
        deadline_ns=whole["deadline_ns"],
        slo_target_ns=whole["slo_target_ns"],
        prefix_tokens=whole["prefix_tokens"],
        slo_class=coded["slo_class"].labels(),
        tenant=coded["tenant_id"].labels(),
        client=coded["client_id"].labels(),
        model=coded["model"].labels(),
        prefix_group=coded["prefix_group"].labels(),
        streaming=np.concatenate(streaming),
        content=content,
        contents=contents,
        request_id=ids.names,
    )


def _whole_numbers(path: Path, name: str, column: Any) -> Ints:
    low, high = _LIMITS.get(name, (0, MAX_TOKENS))
    numbers = np.asarray(column.to_numpy(zero_copy_only=False))
    if numbers.dtype.kind not in "iu":
        raise InputError("not whole numbers", file=path, key=name, value=str(numbers.dtype))
    if ((numbers < low) | (numbers > high)).any():
        raise InputError(f"must be from {low} to {high}", file=path, key=name)
    return without_room(numbers.astype(np.int64))


class _Coded:
    """A text column with few distinct values, built piece by piece."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._codes: list[NDArray[np.int32]] = []

    def add(self, column: Any) -> None:
        pa = pyarrow()
        if not pa.types.is_dictionary(column.type):
            column = column.cast(pa.string()).dictionary_encode()
        texts = [text or "" for text in column.dictionary.to_pylist()]
        numbers = [self._names.setdefault(text, len(self._names)) for text in texts]
        empty = self._names.setdefault("", len(self._names)) if column.null_count else -1
        places = column.indices.fill_null(len(numbers)).to_numpy(zero_copy_only=False)
        self._codes.append(np.array([*numbers, empty], dtype=np.int32)[places])

    def labels(self) -> Labels:
        return Labels(np.concatenate(self._codes), tuple(self._names)).without_unused()


class _Ids:
    """Request names, kept only if they differ from the default ones."""

    def __init__(self) -> None:
        self.names: list[str] | None = None

    def add(self, column: Any, done: int) -> None:
        names = column.to_pylist()
        if self.names is None and names != [f"request_{done + row}" for row in range(len(names))]:
            self.names = [f"request_{row}" for row in range(done)]
        if self.names is not None:
            self.names += names


def _contents(path: Path, cells: Labels) -> tuple[Ints, tuple[Content, ...]]:
    known: dict[Content, int] = {}
    codes = []
    for cell in cells.names:
        runs = runs_of(cell)
        if runs is None:
            problem = "not a list of [segment, tokens] pairs"
            raise InputError(problem, file=path, key="content", value=cell)
        codes.append(known.setdefault(runs, len(known)) if runs else -1)
    return np.array(codes, dtype=np.int64)[cells.codes], tuple(known)


def read_mapped(path: Path, reading: Reading) -> RequestTable:
    """The requests of a file with the columns given by `reading.columns`.

    Raises:
        InputError: a missing column, or an invalid cell; with the row.
    """
    columns = reading.columns
    check_roles(columns)
    file = open_parquet(path)
    there = file.schema_arrow.names
    for role, name in columns.items():
        if name not in there:
            fix = f"there are {', '.join(there)}"
            raise InputError("missing column", file=path, key=f"--columns {role}={name}", fix=fix)
    pieces: dict[str, list[Any]] = {role: [] for role in columns}
    clock, done = TraceClock(reading, "s"), 0
    for batch in file.iter_batches(ROWS_AT_ONCE, columns=list(columns.values())):
        for role, values in _good_rows(path, batch, columns, reading, clock, done).items():
            pieces[role].append(values)
        done += len(batch)
    if not sum(map(len, pieces["input"])):
        raise InputError("no requests in it", file=path, fix="give a file with at least one row")
    return _of_pieces({role: np.concatenate(parts) for role, parts in pieces.items()}, reading)


def _good_rows(
    path: Path, batch: Any, columns: Mapping[str, str], reading: Reading, clock: TraceClock, done: int
) -> dict[str, NDArray[Any]]:
    """The cells of valid rows, by role."""
    values = {}
    good = np.ones(len(batch), dtype=np.bool_)
    for role, name in columns.items():
        values[role], bad, problem = _cells(role, batch.column(name), clock)
        bad &= good
        if bad.any():
            row = int(np.argmax(bad))
            shown = batch.column(name)[row].as_py()
            place = f"{path}: row {done + row + 1}"
            error = InputError(problem, file=place, key=name, value=shown, fix="correct the row")
            reading.bad.refuse(error, done + row, int(bad.sum()))
            good &= ~bad
    return {role: cells[good] for role, cells in values.items()}


def _cells(role: str, column: Any, clock: TraceClock) -> tuple[NDArray[Any], NDArray[np.bool_], str]:
    """The cells of a column, a mask of the invalid ones, and their problem."""
    pa = pyarrow()
    if role in (*LABELS, SESSION, "request_id"):
        texts = column.cast(pa.string()).to_pylist()
        cells = np.array([text or "" for text in texts], dtype=object)
        return cells, np.zeros(len(cells), dtype=np.bool_), ""
    if role == "arrival" and pa.types.is_timestamp(column.type):
        clock.check_dates()
        moments = column.cast(pa.timestamp("ns", column.type.tz), safe=False).cast(pa.int64()).fill_null(-1)
        since_1970 = moments.to_numpy(zero_copy_only=False)
        return since_1970, since_1970 < 0, "not a time since 1970"
    try:
        numbers = np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return np.zeros(len(column), dtype=np.int64), np.ones(len(column), dtype=np.bool_), "not a number"
    if role == "arrival":
        numbers = numbers * clock.unit_ns(float(numbers[0]))
        bad, problem = ~((numbers >= 0) & (numbers <= LAST_NS)), "not a time within a century"
    else:
        least = int(role == "input")
        bad = ~((numbers >= least) & (numbers <= MAX_TOKENS) & (np.floor(numbers) == numbers))
        problem = f"not a whole number of at least {least}"
    return np.where(bad, 0, np.rint(np.where(bad, 0, numbers))).astype(np.int64), bad, problem


def _of_pieces(columns: dict[str, NDArray[Any]], reading: Reading) -> RequestTable:
    kept = columns["output"] > 0
    reading.left_out(int((~kept).sum()), FAILED)
    columns = {role: cells[kept] for role, cells in columns.items()}
    reading.has_times = "arrival" in columns
    arrival_ns = columns.get("arrival", np.zeros(len(columns["input"]), dtype=np.int64))
    labels = {role: Labels.of(columns[role]) if role in columns else None for role in LABELS}
    table = RequestTable.build(
        arrival_ns,
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
    if SESSION not in columns:
        return table
    return in_conversations(table, columns[SESSION].tolist(), reading, turn=columns.get(TURN))
