"""The tables of a step log as CSV or Parquet, with the metadata."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.cells import harmless, meant
from blis_py.files.csv_files import check_header, csv_rows, stripped
from blis_py.files.json_files import parse_json
from blis_py.files.opening import reading
from blis_py.files.parquet_files import pyarrow
from blis_py.traces.files import writing
from blis_py.traces.steplog_columns import SCHEMA, Kind, kinds_of

_MARK = "# blis-py step log "
_LARGEST = 2**62
"""Bound of all numbers in a log: times in ns, counts, keys of blocks."""


def _check_meta(path: Path, text: str) -> dict[str, Any]:
    try:
        meta = parse_json(text)
    except InputError:
        meta = None
    if not isinstance(meta, dict):
        raise InputError("not a step log", file=path, fix="give the file the engine wrote")
    if meta.get("schema") != SCHEMA:
        raise InputError(
            f"step log of another schema than {SCHEMA}",
            file=path,
            value=meta.get("schema"),
            fix="record it again",
        )
    return meta


# -- CSV -------------------------------------------------------------------------------------------


def _cell(kind: Kind, value: Any) -> Any:
    if kind == "text":
        return harmless(value)
    if kind != "ints":
        return value
    return "=" if value is None else " ".join(map(str, value))


def _value(kind: Kind, cell: str) -> Any:
    if kind == "text":
        return meant(cell)
    if kind == "ints":
        return None if cell == "=" else tuple([_int(number) for number in cell.split()])
    return _float(cell) if kind == "float" else _int(cell)


def _int(cell: str) -> int:
    number = int(cell)
    if not -_LARGEST <= number <= _LARGEST:
        raise ValueError(cell)
    return number


def _float(cell: str) -> float:
    number = float(cell)
    if not isfinite(number):
        raise ValueError(cell)
    return number


def _write_csv(path: Path, meta: dict[str, Any], table: dict[str, list[Any]], kinds: dict[str, Kind]) -> None:
    columns = [[_cell(kind, value) for value in table[name]] for name, kind in kinds.items()]
    with writing(path) as text:
        text.write(_MARK + json.dumps(meta) + "\n")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(kinds)
        writer.writerows(zip(*columns, strict=True))


def _read_csv(path: Path, kinds: dict[str, Kind]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    with reading(path) as text:
        meta = _check_meta(path, text.readline().removeprefix(_MARK))
        rows = csv_rows(text, path, lines_before=1)
        header = next((stripped(names) for _, names in rows), [])
        _check_columns(path, header, kinds)
        kinds = kinds_of(kinds, header)
        places = [(name, kind, header.index(name)) for name, kind in kinds.items()]
        table: dict[str, list[Any]] = {name: [] for name in kinds}
        for line, row in rows:
            if len(row) != len(header):
                problem = f"a row of {len(row)} cells under {len(header)} columns"
                raise InputError(problem, file=f"{path}:{line}", fix="record it again")
            for name, kind, place in places:
                try:
                    table[name].append(_value(kind, row[place]))
                except ValueError:
                    raise InputError(
                        "not what belongs here", file=f"{path}:{line}", key=name, value=row[place]
                    ) from None
    return meta, table


def _check_columns(path: Path, columns: Sequence[str], kinds: dict[str, Kind]) -> None:
    check_header(columns, path, needed=tuple(kinds), others=True, line=2)


# -- Parquet ---------------------------------------------------------------------------------------


def _write_parquet(
    path: Path, meta: dict[str, Any], table: dict[str, list[Any]], kinds: dict[str, Kind]
) -> None:
    pa = pyarrow()
    types = {"int": pa.int64(), "float": pa.float64(), "text": pa.string(), "ints": pa.list_(pa.int64())}
    arrays = [pa.array(table[name], types[kind]) for name, kind in kinds.items()]
    columns = pa.table(arrays, names=list(kinds)).replace_schema_metadata({"blis": json.dumps(meta)})
    pa.parquet.write_table(columns, path, compression="zstd")


def _read_parquet(path: Path, kinds: dict[str, Kind]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    pa = pyarrow()
    try:
        columns = pa.parquet.read_table(path)
    except FileNotFoundError:
        raise InputError("no such file", file=path, fix="check the path") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", file=path) from None
    stated = (columns.schema.metadata or {}).get(b"blis") or b""
    meta = _check_meta(path, stated.decode(errors="replace"))
    _check_columns(path, columns.column_names, kinds)
    kinds = kinds_of(kinds, columns.column_names)
    table = {name: columns[name].to_pylist() for name in kinds}
    for name, kind in kinds.items():
        table[name] = [_of_parquet(path, name, kind, value) for value in table[name]]
    return meta, table


def _of_parquet(path: Path, name: str, kind: Kind, value: Any) -> Any:
    """A Parquet value, checked against its column type."""
    if kind == "ints" and (value is None or isinstance(value, list)):
        return None if value is None else tuple([_of_parquet(path, name, "int", each) for each in value])
    type_of_kind: Any = {"int": int, "float": float, "text": str}.get(kind)
    too_large = type_of_kind is int and type(value) is int and not -_LARGEST <= value <= _LARGEST
    if type(value) is not type_of_kind or too_large:
        raise InputError("not what belongs here", file=path, key=name, value=value, fix="record it again")
    return value


Read = Callable[[Path, dict[str, Kind]], tuple[dict[str, Any], dict[str, list[Any]]]]
Write = Callable[[Path, dict[str, Any], dict[str, list[Any]], dict[str, Kind]], None]
FORMATS: dict[str, tuple[Read, Write]] = {
    ".csv": (_read_csv, _write_csv),
    ".csv.gz": (_read_csv, _write_csv),
    ".parquet": (_read_parquet, _write_parquet),
}


def format_of(path: Path) -> tuple[Read, Write]:
    """
    Raises:
        InputError: an unknown suffix.
    """
    for suffix, functions in FORMATS.items():
        if path.name.endswith(suffix):
            return functions
    raise InputError("unknown kind of file", file=path, fix=f"let the name end in {', '.join(FORMATS)}")
