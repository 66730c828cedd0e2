"""Sampling parameters by slot, from which a batch takes its own; written where a slot changes hands."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.sampling_params import SamplingParams
from engine.sequence import Sequence

RANDOM, FILTERED, PENALISED, HELD_BACK, LOGPROBS = (1 << bit for bit in range(5))
"""What a request needs: random numbers, filters, counts of its tokens, no end before `min_tokens`,
log-probabilities."""
_FIRST_SLOTS = 64


class Columns(NamedTuple):
    """Of the R rows of a batch, `[R]` each."""

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    seeds: NDArray[np.int64]
    needs: NDArray[np.uint8]

    def rows_that(self, need: int, all_needs: int) -> list[int]:
        """Rows of the requests that need this; `all_needs` are those of the batch."""
        rows: list[int] = np.flatnonzero(self.needs & need).tolist() if need & all_needs else []
        return rows


class SamplingColumns:
    """The parameters and the seed of the request in each slot, as of the last batch it was in."""

    def __init__(self) -> None:
        self._owners: list[tuple[SamplingParams, int] | None] = []
        """`Sequence.sampling` of who was in each slot last."""
        self._columns = _empty(0)

    def of(self, sequences: Ordered[Sequence], slots: NDArray[np.int64]) -> Columns:
        """Those of the sequences in these slots."""
        numbers, owners = slots.tolist(), self._owners
        if numbers and max(numbers) >= len(owners):
            self._grow(max(numbers) + 1)
        for slot, sequence in zip(numbers, sequences, strict=True):
            if owners[slot] is not sequence.sampling:
                owners[slot] = sequence.sampling
                self._write(slot, *sequence.sampling)
        return Columns(*(column[slots] for column in self._columns))

    def _write(self, slot: int, params: SamplingParams, seed: int) -> None:
        values = (
            params.temperature,
            max(params.top_k, 0),
            params.top_p,
            params.min_p,
            seed,
            needs_of(params),
        )
        for column, value in zip(self._columns, values, strict=True):
            column[slot] = value

    def _grow(self, slots: int) -> None:
        before, size = self._columns, max(slots, _FIRST_SLOTS, 2 * len(self._owners))
        self._columns = _empty(size)
        for column, old in zip(self._columns, before, strict=True):
            column[: len(old)] = old
        self._owners += [None] * (size - len(self._owners))


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


def _empty(slots: int) -> Columns:
    kinds: tuple[Any, ...] = (np.float32, np.int32, np.float32, np.float32, np.int64, np.uint8)
    return Columns(*(np.zeros(slots, dtype=kind) for kind in kinds))
