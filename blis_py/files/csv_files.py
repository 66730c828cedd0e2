"""CSV reading: rows with their line numbers, and checked headers."""

from __future__ import annotations

import csv
import difflib
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from blis_py.errors import InputError
from blis_py.files.opening import LONGEST_LINE_BYTES, reading

csv.field_size_limit(LONGEST_LINE_BYTES)
"""Largest cell; the csv module's default of 131,072 characters is too small for block keys of a long
prompt."""


def csv_rows(text: Iterable[str], path: Path, *, lines_before: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Cells of every non-empty row, starting with the header, and the line on which the row ends.

    The header decides what separates cells, see `separator_of`.

    Args:
        lines_before: lines already read from the file.

    Raises:
        InputError: unclosed quotes, or an oversized cell; with the line.
    """
    lines = iter(text)
    header = next(lines, "")
    rows = csv.reader(itertools.chain([header], lines), delimiter=separator_of(header), strict=True)
    try:
        for row in rows:
            if row:
                yield lines_before + rows.line_num, row
    except csv.Error as error:
        place = f"{path}:{lines_before + max(rows.line_num, 1)}"
        raise InputError(f"not CSV: {error}", file=place, fix="correct the quotes") from None


def separator_of(header: str) -> str:
    """Separator of the cells of a table: a comma or, in a header without any, a tab or a semicolon."""
    return next((sign for sign in ",\t;" if sign in header), ",")


def header_of(path: Path) -> list[str]:
    """Column names in the first row of a file; empty for an empty file."""
    with reading(path) as text:
        return next((stripped(names) for _, names in csv_rows(text, path)), [])


def stripped(names: Sequence[str]) -> list[str]:
    return [name.strip() for name in names]


def check_header(
    names: Sequence[str],
    path: Path,
    *,
    needed: Sequence[str],
    optional: Collection[str] = (),
    others: bool = False,
    line: int = 1,
) -> None:
    """Refuse a header with duplicate, missing, or (unless `others` are allowed) unknown names.

    Raises:
        InputError: names the allowed columns.
    """
    place = f"{path}:{line}"
    names_before: set[str] = set()
    for name in names:
        if name in names_before:
            raise InputError("column given twice", file=place, key=name or "(no name)", fix="keep one")
        names_before.add(name)
    known = [*needed, *(name for name in optional if name not in needed)]
    there = f"the columns are {', '.join(needed)}"
    more = known[len(needed) :]
    if more:
        there += f" and, where you have them, {', '.join(more)}"
    for name in names:
        if not others and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            fix = f"did you mean {near[0]}? Or remove it" if near else "remove it"
            raise InputError("unknown column", file=place, key=name or "(no name)", fix=f"{fix}; {there}")
    for name in needed:
        if name not in names_before:
            there = f"it has {', '.join(names)}" if others and names and not optional else there
            raise InputError("missing column", file=place, key=name, fix=f"add it; {there}")


def table_rows(
    path: Path, columns: Sequence[str], *, needed: Sequence[str] | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Line number and selected cells of every row of a file, in the order of `columns`.

    Args:
        needed: required columns; None = all of them.

    Raises:
        InputError: a missing or duplicate column, or a row with too few cells; with the line.
    """
    with reading(path) as text:
        rows = csv_rows(text, path)
        header = next((stripped(names) for _, names in rows), [])
        check_header(header, path, needed=needed or columns, others=True)
        places = [header.index(name) for name in columns]
        for line, row in rows:
            if len(row) != len(header):
                problem = f"a row of {len(row)} cells under {len(header)} columns"
                raise InputError(problem, file=f"{path}:{line}", fix="complete the row or remove it")
            yield line, [row[place] for place in places]
