"""Text files as traces come: plain or gzip, CSV read by column in bounded memory."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError
from blis_py.workload.table import Ints, Labels

ROWS_AT_ONCE = 1 << 15
Column = Sequence[str]


@contextmanager
def reading(path: Path) -> Iterator[IO[str]]:
    """The file as text, decompressed if it is gzip (whatever its name).

    Raises:
        InputError: it cannot be opened, is damaged, or is not text.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            source: Any = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if packed else raw  # type: ignore[type-var]
            yield io.TextIOWrapper(source, encoding="utf-8-sig", newline="")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"damaged gzip file: {error}", file=path, fix="copy it again") from error
    except UnicodeDecodeError as error:
        raise InputError("not a UTF-8 text file", file=path, fix="give a trace as CSV or JSONL") from error
    except OSError as error:
        raise InputError(error.strerror or str(error), file=path, fix="check the path") from error


@contextmanager
def writing(path: Path) -> Iterator[IO[str]]:
    """A text file to write, gzip if its name ends in .gz; the same text gives the same bytes."""
    with ExitStack() as stack:
        target: Any = stack.enter_context(path.open("wb"))
        if path.suffix == ".gz":
            target = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=target, mtime=0))
        yield stack.enter_context(io.TextIOWrapper(target, encoding="utf-8", newline=""))


def csv_header(path: Path) -> list[str]:
    with reading(path) as text:
        return [name.strip() for name in next(csv.reader(text), [])]


class BadCell(ValueError):
    """A cell that cannot be converted: what is wrong with it, and its place among the rows given."""

    def __init__(self, problem: str, index: int, value: str, fix: str | None = None) -> None:
        super().__init__(problem)
        self.problem, self.index, self.value, self.fix = problem, index, value, fix


def read_columns(
    path: Path, columns: dict[str, Callable[[Column], Any]], *, optional: Iterable[str] = ()
) -> dict[str, list[Any]]:
    """Some columns of a CSV file, converted piece by piece so that memory stays bounded.

    Args:
        columns: name -> conversion of one piece of the column; it raises `BadCell`.
        optional: names that may be absent (and then are from the answer).

    Returns:
        Name -> converted pieces, in order.

    Raises:
        InputError: a column is missing, a row has the wrong number of cells, a cell is bad; with the line.
    """
    with reading(path) as text:
        rows = csv.reader(text)
        header = [name.strip() for name in next(rows, [])]
        missing = [name for name in columns if name not in header and name not in set(optional)]
        if missing:
            raise InputError(
                "missing column", file=f"{path}:1", key=missing[0], fix="see the format's columns"
            )
        places = {name: header.index(name) for name in columns if name in header}
        pieces: dict[str, list[Any]] = {name: [] for name in places}
        done = 0
        try:
            for piece in _pieces(rows):
                _check_width(path, header, piece, done)
                cells = list(zip(*piece, strict=True))
                for name, place in places.items():
                    try:
                        pieces[name].append(columns[name](cells[place]))
                    except BadCell as bad:
                        where = f"{path}:{line_of_row(path, done + bad.index)}"
                        raise InputError(
                            bad.problem, file=where, key=name, value=bad.value, fix=bad.fix
                        ) from None
                done += len(piece)
        except csv.Error as error:
            raise InputError(f"not CSV: {error}", file=f"{path}:{rows.line_num}") from error
    if done == 0:
        raise InputError("no requests in the trace", file=path, fix="give a file with at least one row")
    return pieces


def _pieces(rows: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    filled = (row for row in rows if row)
    while piece := list(itertools.islice(filled, ROWS_AT_ONCE)):
        yield piece


def _check_width(path: Path, header: list[str], piece: list[list[str]], done: int) -> None:
    if set(map(len, piece)) == {len(header)}:
        return
    index = next(at for at, row in enumerate(piece) if len(row) != len(header))
    raise InputError(
        f"a row of {len(piece[index])} cells under {len(header)} columns",
        file=f"{path}:{line_of_row(path, done + index)}",
        fix="complete the row or remove it",
    )


def line_of_row(path: Path, row: int) -> int:
    """Line on which a data row ends (the header is no row; quoted cells may span lines)."""
    with reading(path) as text:
        rows = csv.reader(text)
        next(rows, None)
        for number, _ in enumerate(filter(None, rows)):
            if number == row:
                break
        return rows.line_num


def integers(low: int = 0, high: int = 2**62) -> Callable[[Column], Ints]:
    """Conversion to whole numbers in [low, high]."""

    def convert(cells: Column) -> Ints:
        try:
            numbers = np.fromiter(map(int, cells), dtype=np.int64, count=len(cells))
        except (ValueError, OverflowError):
            index = next(at for at, cell in enumerate(cells) if not _is_integer(cell))
            raise BadCell("not a whole number", index, cells[index]) from None
        if numbers.min() < low:
            index = int(np.argmax(numbers < low))
            raise BadCell(f"must be at least {low}", index, cells[index])
        if numbers.max() > high:
            raise BadCell(
                "is too large", int(np.argmax(numbers > high)), cells[int(np.argmax(numbers > high))]
            )
        return numbers

    return convert


def _is_integer(cell: str) -> bool:
    try:
        return -(2**63) <= int(cell) < 2**63
    except ValueError:
        return False


def seconds(cells: Column) -> Ints:
    """Conversion of non-negative seconds with a fraction to ns."""
    try:
        numbers = np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
    except ValueError:
        index = next(at for at, cell in enumerate(cells) if not _is_number(cell))
        raise BadCell("not a number of seconds", index, cells[index]) from None
    bad = ~((numbers >= 0) & (numbers < 4e9))
    if bad.any():
        index = int(np.argmax(bad))
        raise BadCell("must be a time in seconds, not negative", index, cells[index])
    return np.rint(numbers * 1e9).astype(np.int64)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def labels() -> Callable[[Column], NDArray[np.int32]]:
    """Conversion to codes; the names are numbered across pieces (see `as_labels`)."""
    names: dict[str, int] = {}

    def convert(cells: Column) -> NDArray[np.int32]:
        if cells.count(cells[0]) == len(cells):
            return np.full(len(cells), names.setdefault(cells[0], len(names)), dtype=np.int32)
        codes = (names.setdefault(cell, len(names)) for cell in cells)
        return np.fromiter(codes, dtype=np.int32, count=len(cells))

    convert.names = names  # type: ignore[attr-defined]
    return convert


def as_labels(pieces: list[NDArray[np.int32]], convert: Any) -> Labels:
    return Labels(np.concatenate(pieces), tuple(convert.names))
