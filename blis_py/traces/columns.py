"""CSV read by column, in bounded memory."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError
from blis_py.files.csv_files import check_header, csv_rows, header_of, separator_of, stripped
from blis_py.files.opening import reading
from blis_py.requests.table import Ints, Labels
from blis_py.traces.bad_rows import BadRows
from blis_py.traces.files import ROWS_AT_ONCE
from blis_py.traces.kinds import BadCells, Mask, TraceKind

LineOf = Callable[[Path, int], int]
"""The line on which a row of a file ends, by its index."""


class Columns:
    """Selected columns of a CSV file, by name: arrays of equal length, or `Labels`."""

    def __init__(
        self, path: Path, columns: dict[str, Any], rows: Ints, bad: BadRows, line_of: LineOf
    ) -> None:
        self.path = path
        self._line_of = line_of
        self._columns = columns
        self._rows = rows
        """Row index in the file of each row."""
        self._bad = bad

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]

    def get(self, name: str) -> Any:
        """A column, or None if the file lacks it."""
        return self._columns.get(name)

    def ints(self, name: str, default: int = 0) -> Ints:
        """A column of whole numbers; `default` in every row if the file lacks it."""
        return self._columns[name] if name in self else np.full(len(self), default, dtype=np.int64)

    def labels(self, name: str) -> Labels:
        """A text column; empty if the file lacks it."""
        return self._columns[name] if name in self else Labels.constant("", len(self))

    def refuse(self, rows: Mask, problem: str, key: str, values: Any = None, fix: str | None = None) -> bool:
        """Report rows that are only recognised as bad together; return whether there were any.

        They are removed, unless bad rows are errors.

        Args:
            values: cell values for the message; by default those of the column `key`.
        """
        if not rows.any():
            return False
        first = int(np.argmax(rows))
        value = (self[key] if values is None else values)[first]
        row, fix = int(self._rows[first]), fix or "correct the row"
        line = self._line_of(self.path, row)
        _refuse(self.path, line, key, value, problem, fix, self._bad, int(rows.sum()))
        self.leave_out(rows)
        return True

    def leave_out(self, rows: Mask) -> int:
        """Remove these rows, which are no errors; return their number."""
        count = int(rows.sum())
        if count:
            kept = np.flatnonzero(~rows)
            self._rows = self._rows[kept]
            self._columns = {name: _taken(column, kept) for name, column in self._columns.items()}
            self._require_any()
        return count

    def _require_any(self) -> None:
        if len(self):
            return
        first = self._bad.first
        if first is not None:
            problem = f"all rows are bad, the first: {first.problem}"
            raise InputError(problem, file=first.file, key=first.key, value=first.value, fix=first.fix)
        raise InputError("no requests in it", file=self.path, fix="give a file with at least one row")


def _taken(column: Any, rows: NDArray[np.intp]) -> Any:
    return _used(column.take(rows)) if isinstance(column, Labels) else column[rows]


def _used(column: Any) -> Any:
    """A column without labels that only removed rows had."""
    return column.without_unused() if isinstance(column, Labels) else column


def read_columns(
    path: Path,
    columns: Mapping[str, TraceKind],
    *,
    optional: Collection[str] = (),
    ignored: Collection[str] | None = None,
    bad_rows: BadRows | None = None,
) -> Columns:
    """Read selected columns of a CSV file, in pieces with bounded memory.

    Args:
        columns: name -> kind, in any order.
        optional: names that may be absent.
        ignored: further names allowed without effect; None = any.
        bad_rows: policy on bad rows; errors by default.

    Raises:
        InputError: a missing, duplicate or unknown column; a row with the wrong number of cells, or a bad
        cell, with the line.
    """
    bad = bad_rows or BadRows()
    header = header_of(path)
    needed = [name for name in columns if name not in optional]
    further = [*(name for name in columns if name in optional), *(ignored or ())]
    check_header(header, path, needed=needed, optional=further, others=ignored is None)
    present = {name: kind for name, kind in columns.items() if name in header}
    try:
        table = finished(path, _quick_pieces(path, header, present), present, bad, line_of_row)
    except _Unclear:
        table = finished(path, _careful_pieces(path, header, present, bad), present, bad, line_of_row)
    return table


Piece = tuple[Ints, dict[str, Any]]
"""Row indices in the file, and cells by column."""


def finished(
    path: Path, pieces: Iterator[Piece], columns: Mapping[str, TraceKind], bad: BadRows, line_of: LineOf
) -> Columns:
    """The columns of all pieces.

    Raises:
        InputError: a bad cell, or no rows at all.
    """
    numbers: list[Ints] = []
    finished: dict[str, list[Any]] = {name: [] for name in columns}
    for rows, piece in pieces:
        rows, done = _finished_piece(path, rows, piece, columns, bad, line_of)
        if not len(rows):
            continue
        numbers.append(rows)
        for name, values in done.items():
            finished[name].append(values)
    if not numbers:
        Columns(path, {}, np.zeros(0, dtype=np.int64), bad, line_of)._require_any()
    whole = {name: columns[name].join(finished.pop(name)) for name in tuple(finished)}
    if bad.count:
        whole = {name: _used(column) for name, column in whole.items()}
    return Columns(path, whole, np.concatenate(numbers), bad, line_of)


def _finished_piece(
    path: Path,
    rows: Ints,
    piece: dict[str, Any],
    columns: Mapping[str, TraceKind],
    bad: BadRows,
    line_of: LineOf,
) -> Piece:
    done: dict[str, Any] = {}
    for name, kind in columns.items():
        while len(rows) and name not in done:
            try:
                done[name] = kind.finish(piece[name])
            except BadCells as cells:
                first = int(np.argmax(cells.rows))
                value = piece[name][first]
                line, count = line_of(path, int(rows[first])), int(cells.rows.sum())
                _refuse(path, line, name, value, cells.problem, cells.fix, bad, count)
                rows = rows[~cells.rows]
                piece = {other: values[~cells.rows] for other, values in piece.items()}
                done = {other: values[~cells.rows] for other, values in done.items()}
    return rows, done if len(rows) else {}


class _Unclear(Exception):
    """Raised when the fast parser cannot decide on the content."""


def _quick_pieces(path: Path, header: list[str], columns: Mapping[str, TraceKind]) -> Iterator[Piece]:
    """Parse columns by numpy's C parser, which needs plain cells and rows of equal width."""
    places = [header.index(name) for name in columns]
    dtype = [(name, kind.dtype) for name, kind in columns.items()]
    done = 0
    with reading(path) as text:
        first = next(text)
        separator = separator_of(first)
        if stripped(first.split(separator)) != header:
            raise _Unclear
        separators = methodcaller("count", separator)
        while lines := list(itertools.islice(text, ROWS_AT_ONCE)):
            together = "".join(lines)
            if set(map(separators, lines)) != {len(header) - 1} or '"' in together or "\0" in together:
                raise _Unclear
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # numpy would read 1.5 as a whole number, with a warning
                    table = np.loadtxt(
                        lines, dtype, delimiter=separator, usecols=places, comments=None, ndmin=1
                    )
            except (ValueError, OverflowError, Warning):
                raise _Unclear from None
            if len(table) != len(lines):
                raise _Unclear  # empty lines
            yield np.arange(done, done + len(table)), {name: table[name] for name in columns}
            done += len(table)


def _careful_pieces(
    path: Path, header: list[str], columns: Mapping[str, TraceKind], bad: BadRows
) -> Iterator[Piece]:
    """Columns cell by cell, with every CSV quirk, and an exact place for every error."""
    places = {name: header.index(name) for name in columns}
    with reading(path) as text:
        rows = csv_rows(text, path)
        next(rows)
        done = 0
        while piece := list(itertools.islice(rows, ROWS_AT_ONCE)):
            wrong = dict(_uneven(path, piece, header))
            even = [index for index, (line, _) in enumerate(piece) if line not in wrong]
            cells_of = {
                name: parsed(
                    path, name, columns[name], [(piece[i][0], piece[i][1][place]) for i in even], wrong
                )
                for name, place in places.items()
            }
            for line in sorted(wrong):
                bad.refuse(wrong[line], line)
            good = np.array([piece[index][0] not in wrong for index in even], dtype=np.bool_)
            rows_of_piece = np.array(even, dtype=np.int64)[good] + done
            yield rows_of_piece, {name: values[good] for name, values in cells_of.items()}
            done += len(piece)


def _uneven(
    path: Path, piece: list[tuple[int, list[str]]], header: list[str]
) -> Iterator[tuple[int, InputError]]:
    for line, cells in piece:
        if len(cells) != len(header):
            problem = f"a row of {len(cells)} cells under {len(header)} columns"
            yield line, InputError(problem, file=f"{path}:{line}", fix="complete the row or remove it")


def parsed(
    path: Path, name: str, kind: TraceKind, cells: list[tuple[int, str]], wrong: dict[int, InputError]
) -> NDArray[Any]:
    """Values of a column; lines with invalid cells are added to `wrong`."""
    values = np.empty(len(cells), dtype=kind.dtype)
    for index, (line, cell) in enumerate(cells):
        try:
            values[index] = kind.parse(cell)
        except (ValueError, OverflowError):
            wrong.setdefault(line, InputError(kind.problem, file=f"{path}:{line}", key=name, value=cell))
    return values


def _refuse(
    path: Path, line: int, name: str, value: object, problem: str, fix: str | None, bad: BadRows, rows: int
) -> None:
    """Report `rows` bad rows, the first of which ends on this line."""
    value = value.item() if isinstance(value, np.generic) else value
    bad.refuse(InputError(problem, file=f"{path}:{line}", key=name, value=value, fix=fix), line, rows)


def line_of_row(path: Path, row: int) -> int:
    """Line on which a data row ends (the header is no row; quoted cells may span lines)."""
    with reading(path) as text:
        rows = csv_rows(text, path)
        next(rows, None)
        for number, (line, _) in enumerate(rows):
            if number == row:
                return line
    return 0
