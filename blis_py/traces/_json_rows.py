"""Objects of JSON lines and JSON lists, errors with their line or number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.json_files import parse_json
from blis_py.files.opening import reading as opened
from blis_py.traces.reading import Reading


def json_rows(path: Path, reading: Reading) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Line number, location text, and object of every non-empty line.

    Raises:
        InputError: a line that is not a JSON object, unless bad rows are skipped.
    """
    with opened(path) as text:
        for number, line in enumerate(text, 1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                row = parse_json(line, where, fix="write one object per line")
                if not isinstance(row, dict):
                    raise InputError("not a JSON object", file=where, fix="write one object per line")
            except InputError as error:
                reading.bad.refuse(error, number)
                continue
            yield number, where, row


def list_rows(place: Path, entries: list[Any], reading: Reading) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Number, from 0, location text, and object of every entry of a JSON list.

    Raises:
        InputError: an entry that is not an object, unless bad rows are skipped.
    """
    for number, entry in enumerate(entries):
        where = f"{place}:{number}"
        if isinstance(entry, dict):
            yield number, where, entry
        else:
            reading.bad.refuse(InputError("not a JSON object", file=where), number)


def places_of(row: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Paths to the values of nested objects."""
    for key, value in row.items():
        if isinstance(value, dict) and before.count(".") < 3:
            yield from places_of(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def within(value: Any, *names: str) -> Any:
    """The value below these names in nested objects; None if one of them is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def items(value: Any) -> list[Any]:
    """The items of a list; empty for other values."""
    return value if isinstance(value, list) else []


def any_of(value: Any, places: tuple[tuple[str, ...], ...]) -> Any:
    """The first value present among these paths; None without any."""
    values = (within(value, *place) for place in places)
    return next((each for each in values if each is not None), None)


def first_of(value: Any, places: tuple[tuple[str, ...], ...]) -> Any:
    """The first value present among these paths; without any, a text that is not a number."""
    return "nothing" if (found := any_of(value, places)) is None else found
