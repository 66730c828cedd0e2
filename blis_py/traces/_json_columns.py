"""JSON lines read by column: each a key, or a path of keys such as `usage.prompt_tokens`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.errors import InputError
from blis_py.traces._json_rows import json_rows, within
from blis_py.traces.columns import Columns, Piece, finished, parsed
from blis_py.traces.files import ROWS_AT_ONCE
from blis_py.traces.kinds import TraceKind
from blis_py.traces.reading import Reading


def read_json_columns(path: Path, columns: Mapping[str, TraceKind], reading: Reading) -> Columns:
    """The values at these places of every line; null and missing ones are empty cells.

    Raises:
        InputError: a place that the first line lacks, or a bad cell; with the line.
    """
    return finished(path, _pieces(path, columns, reading), columns, reading.bad, _line_of)


def _pieces(path: Path, columns: Mapping[str, TraceKind], reading: Reading) -> Iterator[Piece]:
    rows = json_rows(path, reading)
    done = 0
    while piece := list(islice(rows, ROWS_AT_ONCE)):
        if not done:
            _check_places(piece[0][2], columns, piece[0][1])
        wrong: dict[int, InputError] = {}
        cells = {
            name: parsed(path, name, kind, [(line, _cell(row, name)) for line, _, row in piece], wrong)
            for name, kind in columns.items()
        }
        for line in sorted(wrong):
            reading.bad.refuse(wrong[line], line)
        good = np.array([line not in wrong for line, *_ in piece], dtype=np.bool_)
        lines = np.array([line for line, *_ in piece], dtype=np.int64)
        yield lines[good], {name: values[good] for name, values in cells.items()}
        done += len(piece)


def _check_places(row: dict[str, Any], columns: Mapping[str, TraceKind], where: str) -> None:
    places = tuple(_places(row))
    for name in columns:
        if name not in places and _value(row, name) is None:
            raise InputError("no such key", file=where, key=name, fix=f"it has {', '.join(places)}")


def _places(row: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Paths to the values of nested objects."""
    for key, value in row.items():
        if isinstance(value, dict) and before.count(".") < 3:
            yield from _places(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def _value(row: dict[str, Any], name: str) -> Any:
    return row[name] if name in row else within(row, *name.split("."))


def _cell(row: dict[str, Any], name: str) -> str:
    value = _value(row, name)
    return "" if value is None else str(value)


def _line_of(path: Path, row: int) -> int:
    """Rows of these pieces are numbered by their lines."""
    return row
