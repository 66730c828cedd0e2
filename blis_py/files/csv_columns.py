"""Columns of any values as CSV; a value that is missing is an empty cell."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def columns_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows by column, in the order in which their names first appear; None where a row has no such key."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def csv_text(columns: Mapping[str, Sequence[Any]]) -> str:
    """A header and a line for each row.

    Numbers of a column have one type: whole numbers beside fractions or empty cells are fractions.
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows(zip(*(_cells(list(values)) for values in columns.values()), strict=True))
    return text.getvalue()


def _cells(values: Sequence[Any]) -> Sequence[Any]:
    """The values, NaN as None."""
    present = [None if value != value else value for value in values]
    kinds = {type(value) for value in present}
    if kinds - {int, float, type(None)} or kinds <= {int}:
        return present
    return [None if value is None else float(value) for value in present]
