"""JSON lines and lists read by column: each a key, or a path of keys such as `usage.prompt_tokens`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.errors import InputError
from blis_py.traces._json_rows import json_rows, list_rows, places_of, within
from blis_py.traces.columns import Columns, Piece, finished, parsed
from blis_py.traces.files import ROWS_AT_ONCE
from blis_py.traces.kinds import TraceKind
from blis_py.traces.reading import Reading

_SHOWN = 100
"""Rows whose places are named in an error."""


Rows = Iterator[tuple[int, str, dict[str, Any]]]
"""Number, location text and object of each row."""


def read_json_columns(path: Path, columns: Mapping[str, TraceKind], reading: Reading) -> Columns:
    """The values at these places of every line; null and missing ones are empty cells.

    Raises:
        InputError: a place that the first lines lack, or a bad cell; with the line.
    """
    return _read(path, json_rows(path, reading), columns, reading)


def read_list_columns(
    path: Path, entries: list[Any], columns: Mapping[str, TraceKind], reading: Reading
) -> Columns:
    """The values at these places of every entry of a JSON list.

    Raises:
        InputError: a place that the first entries lack, or a bad cell; with the number of the entry.
    """
    place = Path(f"{path} entry")
    return _read(place, list_rows(place, entries, reading), columns, reading)


def _read(path: Path, rows: Rows, columns: Mapping[str, TraceKind], reading: Reading) -> Columns:
    return finished(path, _pieces(path, rows, columns, reading), columns, reading.bad, _number_of)


def _pieces(path: Path, rows: Rows, columns: Mapping[str, TraceKind], reading: Reading) -> Iterator[Piece]:
    done = 0
    while piece := list(islice(rows, ROWS_AT_ONCE)):
        if not done:
            _check_places([row for _, _, row in piece], columns, piece[0][1])
        wrong: dict[int, InputError] = {}
        cells = {
            name: parsed(path, name, kind, [(number, _cell(row, name)) for number, _, row in piece], wrong)
            for name, kind in columns.items()
        }
        for number in sorted(wrong):
            reading.bad.refuse(wrong[number], number)
        good = np.array([number not in wrong for number, *_ in piece], dtype=np.bool_)
        numbers = np.array([number for number, *_ in piece], dtype=np.int64)
        yield numbers[good], {name: values[good] for name, values in cells.items()}
        done += len(piece)


def _check_places(rows: list[dict[str, Any]], columns: Mapping[str, TraceKind], where: str) -> None:
    """Refuse a place that none of the rows has; a failed request may lack some."""
    places = tuple(dict.fromkeys(place for row in rows[:_SHOWN] for place in places_of(row)))
    for name in columns:
        if name not in places and all(_value(row, name) is None for row in rows):
            raise InputError("no such key", file=where, key=name, fix=f"it has {', '.join(places)}")


def _value(row: dict[str, Any], name: str) -> Any:
    return row[name] if name in row else within(row, *name.split("."))


def _cell(row: dict[str, Any], name: str) -> str:
    value = _value(row, name)
    return "" if value is None else str(value)


def _number_of(path: Path, row: int) -> int:
    """Rows of these pieces are numbered by their lines or entries."""
    return row
