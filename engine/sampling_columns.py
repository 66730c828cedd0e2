"""Sampling parameters by slot, from which a batch takes its own; written where a slot changes hands."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.sampling_params import SamplingParams
from engine.sequence import Sequence

RANDOM, FILTERED, PENALISED, HELD_BACK, LOGPROBS = (1 << bit for bit in range(5))
"""Needs of a request: random numbers, filters, counts of its tokens, no end before `min_tokens`,
log-probabilities."""
_FIRST_SLOTS = 64
_HOTTEST, _ALL = float(np.finfo(np.float32).max), np.iinfo(np.int32).max


class SamplingRows(NamedTuple):
    """Columns of the R rows of a batch, `[R]` each."""

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    seeds: NDArray[np.int64]
    needs: NDArray[np.uint8]

    def rows_that(self, need: int) -> list[int]:
        """Rows of the requests that need this."""
        rows: list[int] = np.flatnonzero(self.needs & need).tolist()
        return rows


class SamplingColumns:
    """The parameters and the seed of the request in each slot, as of the last batch it was in."""

    def __init__(self) -> None:
        self._owners = np.zeros(0, dtype=np.int64)
        """Serial number of the sequence that was in each slot last; -1 = none was."""
        self._columns = _empty()

    def needs(
        self, sequences: Ordered[Sequence], slots: NDArray[np.int64], serials: NDArray[np.int64]
    ) -> int:
        """All that any of these sequences needs, which are in these slots and have these serial numbers."""
        try:
            changed = self._owners[slots] != serials
        except IndexError:
            self._grow(int(slots.max()) + 1)
            changed = self._owners[slots] != serials
        for index in changed.nonzero()[0].tolist():
            self._write(slots[index], sequences[index].params, sequences[index].seed)
        self._owners[slots] = serials
        return int(np.bitwise_or.reduce(self._columns.needs.take(slots)))

    def of(self, slots: NDArray[np.int64]) -> SamplingRows:
        """Those of the sequences in these slots, whose needs have been looked up."""
        return _map(lambda column: column.take(slots), self._columns)

    def _write(self, slot: int, params: SamplingParams, seed: int) -> None:
        columns = self._columns
        columns.temperature[slot] = min(params.temperature, _HOTTEST)
        columns.top_k[slot] = min(max(params.top_k, 0), _ALL)
        columns.top_p[slot], columns.min_p[slot] = params.top_p, params.min_p
        columns.seeds[slot], columns.needs[slot] = seed, needs_of(params)

    def _grow(self, slots: int) -> None:
        more = max(slots, _FIRST_SLOTS, 2 * len(self._owners)) - len(self._owners)
        self._columns = _map(lambda column: np.pad(column, (0, more)), self._columns)
        self._owners = np.pad(self._owners, (0, more), constant_values=-1)


def needs_of(params: SamplingParams) -> int:
    """The needs of a request, as one number."""
    filtered = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
    needed = (
        (RANDOM, params.temperature != 0),
        (FILTERED, filtered),
        (PENALISED, params.penalised),
        (HELD_BACK, params.min_tokens > 0),
        (LOGPROBS, params.logprobs is not None),
    )
    return sum(need for need, there in needed if there)


def _map(change: Callable[[NDArray[Any]], NDArray[Any]], columns: SamplingRows) -> SamplingRows:
    return SamplingRows(
        temperature=change(columns.temperature),
        top_k=change(columns.top_k),
        top_p=change(columns.top_p),
        min_p=change(columns.min_p),
        seeds=change(columns.seeds),
        needs=change(columns.needs),
    )


def greedy_rows(count: int) -> SamplingRows:
    """Rows of so many requests without needs; their seeds do not matter."""
    off, ones, counts = np.zeros(count, np.float32), np.ones(count, np.float32), np.zeros(count, np.int32)
    return SamplingRows(off, counts, ones, off, np.zeros(count, np.int64), np.zeros(count, np.uint8))


def _empty() -> SamplingRows:
    floats, counts = np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.int32)
    seeds, needs = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    return SamplingRows(floats, counts, floats, floats, seeds, needs)
