"""The times of all tokens of a run, one row each: the file beside a TraceV2 with measured times.

Columns as the peer writes them: `request_id`, `chunk_index` (0 = the first token), `timestamp_us` on the
clock of the trace.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError
from blis_py.requests.table import Ints
from blis_py.traces.columns import read_columns
from blis_py.traces.files import ROWS_AT_ONCE, writing
from blis_py.traces.kinds import integers

NAME = "itl.csv"
COLUMNS = ("request_id", "chunk_index", "timestamp_us")
_LAST_US = 2**53


@dataclass(frozen=True, slots=True)
class Ragged:
    """Numbers of several requests, concatenated."""

    values: NDArray[np.float64]
    counts: Ints
    """`[requests]` count of numbers for each request."""

    def take(self, rows: NDArray[np.intp]) -> Ragged:
        """The numbers of some requests, in the given order."""
        counts = self.counts[rows]
        starts = (np.cumsum(self.counts) - self.counts)[rows]
        return Ragged(self.values[_places(starts, counts)], counts)

    def means(self) -> NDArray[np.float64]:
        """Mean of each request; NaN without numbers."""
        owner = np.repeat(np.arange(len(self.counts)), self.counts)
        sums = np.bincount(owner, self.values, len(self.counts))
        means: NDArray[np.float64] = sums / np.where(self.counts > 0, self.counts, np.nan)
        return means


def write_itl(path: Path, request_id: Ints, counts: Ints, times_ns: Ints) -> None:
    """Write token times, `counts` for each request, concatenated."""
    index = _places(np.zeros_like(counts), counts)
    columns = (np.repeat(request_id, counts), index, times_ns // 1000)
    with writing(path) as text:
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(COLUMNS)
        for start in range(0, len(times_ns), ROWS_AT_ONCE):
            piece = slice(start, start + ROWS_AT_ONCE)
            rows.writerows(zip(*(column[piece].tolist() for column in columns), strict=True))


def read_gaps(path: Path, request_id: Ints) -> Ragged:
    """Gaps in s between the tokens of these requests; empty for a request that the file lacks.

    Raises:
        InputError: an unreadable file; a duplicate token, or one earlier than its predecessor.
    """
    whole = integers(-_LAST_US, _LAST_US)
    columns = read_columns(path, dict.fromkeys(COLUMNS, whole))
    ids, index, time_us = (columns[name] for name in COLUMNS)
    order = np.lexsort((index, ids))
    ids, index, time_us = ids[order], index[order], time_us[order]
    same = ids[1:] == ids[:-1]
    gap_us = np.diff(time_us)
    wrong = np.flatnonzero(same & ((np.diff(index) == 0) | (gap_us < 0)))
    if len(wrong):
        row = wrong[0] + 1
        raise InputError(
            "a token twice, or before the one in front of it",
            file=path,
            key=f"request_id {ids[row]}, chunk_index",
            value=int(index[row]),
        )
    values, owners = gap_us[same] / 1e6, ids[1:][same]
    first, last = (np.searchsorted(owners, request_id, side) for side in ("left", "right"))
    counts = last - first
    return Ragged(values[_places(first, counts)], counts)


def _places(starts: Ints, counts: Ints) -> Ints:
    """starts[0], starts[0] + 1, ... (counts[0] of them), starts[1], ..."""
    places: Ints = np.arange(counts.sum()) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
    return places
