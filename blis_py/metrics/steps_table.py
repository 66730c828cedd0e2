"""The compact steps table of an instance: one row per run of identical steps, spilled to disk when large."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from blis_py.core.features import is_whole
from blis_py.errors import InputError

_ROWS = 4096
"""Rows written at once."""


class Spool:
    """A temporary file shared by many tables; created when one of them first writes to it."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._end = 0

    def write(self, data: bytes) -> int:
        """Write data; returns its offset."""
        if self._file is None:
            self._file = TemporaryFile(prefix="blis-steps-")  # noqa: SIM115 - lives as long as the record
        place, self._end = self._end, self._end + len(data)
        self._file.seek(place)
        self._file.write(data)
        return place

    def read(self, place: int, count: int) -> bytes:
        assert self._file is not None
        self._file.seek(place)
        return self._file.read(count)


class StepsTable:
    """A table written row by row and read by column when it is complete.

    Args:
        names: names of the columns.
        spool: file for rows that need not stay in memory.

    Raises:
        InputError: two columns of one name.
    """

    def __init__(self, names: Sequence[str], spool: Spool | None = None) -> None:
        self.names = tuple(names)
        if len(set(names)) < len(self.names):
            double = next(name for name in names if self.names.count(name) > 1)
            fix = "give the step feature another name"
            raise InputError("two columns of the steps table", key="name", value=double, fix=fix)
        self._spool = spool or Spool()
        self._latest = array("d")
        self._written: list[tuple[int, int]] = []
        """Offset and length of each part written to the spool."""
        self._limit = _ROWS * len(self.names)

    def append(self, row: Sequence[float]) -> None:
        """Append a row with a value for each column."""
        self._latest.extend(row)
        if len(self._latest) >= self._limit:
            data = self._latest.tobytes()
            self._written.append((self._spool.write(data), len(data)))
            self._latest = array("d")

    def __len__(self) -> int:
        values = sum(length for _, length in self._written) // 8 + len(self._latest)
        return values // len(self.names)

    def parts(self) -> Iterator[dict[str, NDArray[Any]]]:
        """All columns, in parts of some thousand rows."""
        for data in self._data():
            yield {name: self._typed(name, data[:, i]) for i, name in enumerate(self.names)}

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A column by name."""
        index = self.names.index(name)
        return self._typed(name, np.concatenate([data[:, index] for data in self._data()]))

    def _data(self) -> Iterator[NDArray[np.float64]]:
        for place, length in self._written:
            yield self._rows(self._spool.read(place, length))
        yield self._rows(self._latest.tobytes())

    def _rows(self, data: bytes) -> NDArray[np.float64]:
        return np.frombuffer(data, dtype=np.float64).reshape(-1, len(self.names))

    def _typed(self, name: str, column: NDArray[np.float64]) -> NDArray[Any]:
        return column.astype(np.int64) if is_whole(name) else column
