"""Cell types of columns: parsing and vectorised checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.files.cells import meant
from blis_py.requests.table import Ints, Labels

Mask = NDArray[np.bool_]


class BadCells(ValueError):
    """Invalid cells: the problem of the first, and a mask of the invalid ones in the given column."""

    def __init__(self, problem: str, rows: Mask, fix: str | None = None) -> None:
        super().__init__(problem)
        self.problem, self.rows, self.fix = problem, rows, fix


def joined(pieces: list[NDArray[Any]]) -> NDArray[Any]:
    """Concatenation of the pieces; a constant column takes no memory."""
    first = pieces[0][:1]
    if all(piece.strides == (0,) and piece[0] == first[0] for piece in pieces):
        return np.broadcast_to(first, sum(map(len, pieces)))
    return np.concatenate(pieces)


def without_room(numbers: Ints) -> Ints:
    """A copy of the numbers; a constant column becomes a broadcast view of a single one.

    A view of one column of a table would keep the others alive, including their texts.
    """
    same = (numbers == numbers[0]).all()
    return np.broadcast_to(numbers[:1].copy(), len(numbers)) if same else np.ascontiguousarray(numbers)


@dataclass(frozen=True, slots=True)
class TraceKind:
    """Interpretation of a column's cells.

    Attributes:
        dtype: of the parsed column; `O` leaves the text.
        parse: one cell of text to one value; raises `ValueError`.
        problem: error message if it does.
        finish: converts a parsed column (or piece) to its final form, which is never a view of it; raises
        `BadCells`.
        join: combines the finished pieces.
    """

    dtype: str
    parse: Callable[[str], Any]
    problem: str
    finish: Callable[[Any], Any]
    join: Callable[[list[Any]], Any] = joined


def integers(low: int = 0, high: int = 2**62) -> TraceKind:
    """Whole numbers in [low, high]."""

    def finish(numbers: Ints) -> Ints:
        if numbers.min() < low:
            raise BadCells(f"must be at least {low}", numbers < low)
        if numbers.max() > high:
            raise BadCells(f"must be at most {high}", numbers > high)
        return without_room(numbers)

    return TraceKind("i8", _whole, "not a whole number", finish)


def _whole(cell: str) -> int:
    if "_" in cell:
        raise ValueError(cell)
    return int(cell)


def fractions() -> TraceKind:
    """Numbers; NaN for empty cells."""
    return _or_empty(np.float64, "nan", "not a number")


def integers_or(default: int) -> TraceKind:
    """Whole numbers; `default` for empty cells."""
    return _or_empty(np.int64, str(default), "not a whole number")


def _or_empty(kind: type, default: str, problem: str) -> TraceKind:
    def finish(cells: NDArray[np.object_]) -> NDArray[Any]:
        if _is(kind, cells[0] or default) and (cells == cells[0]).all():  # as for most such columns
            return np.broadcast_to(np.array([cells[0] or default]).astype(kind), len(cells))
        filled = np.where(cells == "", default, cells)
        try:
            return filled.astype(kind)
        except (ValueError, OverflowError):
            raise BadCells(problem, np.array([not _is(kind, cell) for cell in filled])) from None

    return TraceKind("O", str, problem, finish)


def _is(kind: type, cell: str) -> bool:
    try:
        kind(cell)
    except (ValueError, OverflowError):
        return False
    return True


def labels() -> TraceKind:
    """Text with few distinct values."""
    names: dict[str, int] = {}

    def code(cell: str) -> int:
        return names.setdefault(meant(cell), len(names))

    def finish(cells: NDArray[np.object_]) -> NDArray[np.int32]:
        if np.all(cells == cells[0]):
            return np.full(len(cells), code(cells[0]), dtype=np.int32)
        return np.fromiter(map(code, cells), dtype=np.int32, count=len(cells))

    def join(pieces: list[NDArray[np.int32]]) -> Labels:
        return Labels(np.concatenate(pieces), tuple(names))

    return TraceKind("O", str, "not text", finish, join)


def texts() -> TraceKind:
    """Text that differs from row to row."""

    def finish(cells: NDArray[np.object_]) -> NDArray[np.object_]:
        return np.array([meant(cell) for cell in cells], dtype=object)

    return TraceKind("O", str, "not text", finish)


def repeated(values: NDArray[Any]) -> Mask:
    """Mask of values equal to an earlier one."""
    if values.dtype != object and (values[1:] > values[:-1]).all():
        return np.zeros(len(values), dtype=np.bool_)
    again = np.ones(len(values), dtype=np.bool_)
    again[np.unique(values, return_index=True)[1]] = False
    return again
