"""Text files as traces come: plain or gzip, CSV read by column in bounded memory."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError
from blis_py.workload.table import Ints, Labels

ROWS_AT_ONCE = 1 << 15


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
            source: Any = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if packed else raw
            yield io.TextIOWrapper(source, encoding="utf-8-sig", newline="")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"damaged gzip file: {error}", file=path, fix="copy it again") from error
    except UnicodeDecodeError as error:
        raise InputError("not a UTF-8 text file", file=path, fix="give a trace as CSV or JSONL") from error
    except OSError as error:
        raise InputError(error.strerror or str(error), file=path, fix="check the path") from error


@contextmanager
def writing(path: Path) -> Iterator[IO[str]]:
    """A text file to write, gzip if its name ends in .gz; the same text gives the same bytes.

    It is in its place when it is whole.
    """
    from blis_py.outputs.staging import replacing

    with ExitStack() as stack:
        target: Any = stack.enter_context(stack.enter_context(replacing(path)).open("wb"))
        if path.suffix == ".gz":
            target = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=target, mtime=0))
        yield stack.enter_context(io.TextIOWrapper(target, encoding="utf-8", newline=""))


def csv_header(path: Path) -> list[str]:
    with reading(path) as text:
        return [name.strip() for name in next(csv.reader(text), [])]


class BadCell(ValueError):
    """A cell that is not acceptable: what is wrong with it, and its place in the column given."""

    def __init__(self, problem: str, index: int, fix: str | None = None) -> None:
        super().__init__(problem)
        self.problem, self.index, self.fix = problem, index, fix


@dataclass(frozen=True, slots=True)
class Kind:
    """How the cells of a column are understood.

    Attributes:
        dtype: of the parsed column; `O` leaves the text.
        parse: one cell of text to one value; raises `ValueError`.
        problem: what to say when it does.
        finish: a parsed column (a piece of it) to what the caller wants; raises `BadCell`.
    """

    dtype: str
    parse: Callable[[str], Any]
    problem: str
    finish: Callable[[Any], Any]


def read_columns(
    path: Path, columns: Mapping[str, Kind], *, optional: Iterable[str] = ()
) -> dict[str, list[Any]]:
    """Some columns of a CSV file, piece by piece so that memory stays bounded.

    Args:
        columns: name -> kind, in any order.
        optional: names that may be absent (and then are from the answer).

    Returns:
        Name -> finished pieces, in order.

    Raises:
        InputError: a column is missing, a row has the wrong number of cells, a cell is bad; with the line.
    """
    header = csv_header(path)
    for name in columns:
        if name not in header and name not in optional:
            raise InputError("missing column", file=f"{path}:1", key=name, fix="add it, or check the format")
    present = {name: kind for name, kind in columns.items() if name in header}
    try:
        finished = _finished(path, _quick_pieces(path, header, present), present)
    except _Unclear:
        finished = _finished(path, _careful_pieces(path, header, present), present)
    if not any(finished.values()):
        raise InputError("no requests in the trace", file=path, fix="give a file with at least one row")
    return finished


def _finished(
    path: Path, pieces: Iterator[dict[str, Any]], columns: Mapping[str, Kind]
) -> dict[str, list[Any]]:
    finished: dict[str, list[Any]] = {name: [] for name in columns}
    done = 0
    for piece in pieces:
        for name, kind in columns.items():
            try:
                finished[name].append(kind.finish(piece[name]))
            except BadCell as bad:
                value = piece[name][bad.index]
                raise _error(path, done + bad.index, name, value, bad.problem, bad.fix) from None
        done += len(next(iter(piece.values())))
    return finished


class _Unclear(Exception):
    """The quick way cannot tell what the file says."""


def _quick_pieces(path: Path, header: list[str], columns: Mapping[str, Kind]) -> Iterator[dict[str, Any]]:
    """Columns by numpy's C parser, which needs plain cells and rows of even width."""
    places = [header.index(name) for name in columns]
    dtype = [(name, kind.dtype) for name, kind in columns.items()]
    commas = methodcaller("count", ",")
    with reading(path) as text:
        next(text)
        while lines := list(itertools.islice(text, ROWS_AT_ONCE)):
            if set(map(commas, lines)) != {len(header) - 1} or '"' in "".join(lines):
                raise _Unclear
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # numpy would read 1.5 as a whole number, with a warning
                    table = np.loadtxt(lines, dtype, delimiter=",", usecols=places, comments=None, ndmin=1)
            except (ValueError, OverflowError, Warning):
                raise _Unclear from None
            yield {name: table[name] for name in columns}


def _careful_pieces(path: Path, header: list[str], columns: Mapping[str, Kind]) -> Iterator[dict[str, Any]]:
    """Columns cell by cell, with every CSV quirk, and an exact place for every error."""
    places = {name: header.index(name) for name in columns}
    with reading(path) as text:
        rows = csv.reader(text, strict=True)
        try:
            next(rows)
            done = 0
            while piece := list(itertools.islice(filter(None, rows), ROWS_AT_ONCE)):
                for index, row in enumerate(piece):
                    if len(row) != len(header):
                        problem = f"a row of {len(row)} cells under {len(header)} columns"
                        raise _error(path, done + index, None, None, problem, "complete the row or remove it")
                yield {
                    name: _parsed(path, done, name, columns[name], [row[place] for row in piece])
                    for name, place in places.items()
                }
                done += len(piece)
        except csv.Error as error:
            raise InputError(f"not CSV: {error}", file=f"{path}:{rows.line_num}") from error


def _parsed(path: Path, done: int, name: str, kind: Kind, cells: list[str]) -> NDArray[Any]:
    values = np.empty(len(cells), dtype=kind.dtype)
    for index, cell in enumerate(cells):
        try:
            values[index] = kind.parse(cell)
        except (ValueError, OverflowError):
            raise _error(path, done + index, name, cell, kind.problem, None) from None
    return values


def _error(
    path: Path, row: int, name: str | None, value: object, problem: str, fix: str | None
) -> InputError:
    value = value.item() if isinstance(value, np.generic) else value
    return InputError(problem, file=f"{path}:{line_of_row(path, row)}", key=name, value=value, fix=fix)


def line_of_row(path: Path, row: int) -> int:
    """Line on which a data row ends (the header is no row; quoted cells may span lines)."""
    with reading(path) as text:
        rows = csv.reader(text)
        next(rows, None)
        for number, _ in enumerate(filter(None, rows)):
            if number == row:
                break
        return rows.line_num


def integers(low: int = 0, high: int = 2**62) -> Kind:
    """Whole numbers in [low, high]."""

    def finish(numbers: Ints) -> Ints:
        if numbers.min() < low:
            raise BadCell(f"must be at least {low}", int(np.argmax(numbers < low)))
        if numbers.max() > high:
            raise BadCell(f"must be at most {high}", int(np.argmax(numbers > high)))
        return numbers

    return Kind("i8", _whole, "not a whole number", finish)


def _whole(cell: str) -> int:
    if "_" in cell:
        raise ValueError(cell)
    return int(cell)


def _to_ns(numbers: NDArray[np.float64]) -> Ints:
    bad = ~((numbers >= 0) & (numbers < 4e9))
    if bad.any():
        raise BadCell("must be a time in seconds, not negative", int(np.argmax(bad)))
    return np.rint(numbers * 1e9).astype(np.int64)


SECONDS = Kind("f8", float, "not a number of seconds", _to_ns)
"""Seconds with a fraction, to ns."""


def labels() -> tuple[Kind, Callable[[list[NDArray[np.int32]]], Labels]]:
    """A column of few distinct texts, and how to join its pieces."""
    names: dict[str, int] = {}

    def finish(cells: NDArray[np.object_]) -> NDArray[np.int32]:
        if np.all(cells == cells[0]):
            return np.full(len(cells), names.setdefault(cells[0], len(names)), dtype=np.int32)
        codes = (names.setdefault(cell, len(names)) for cell in cells)
        return np.fromiter(codes, dtype=np.int32, count=len(cells))

    def join(pieces: list[NDArray[np.int32]]) -> Labels:
        return Labels(np.concatenate(pieces), tuple(names))

    return Kind("O", str, "not text", finish), join
