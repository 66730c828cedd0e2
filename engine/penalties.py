"""Device state of penalties: the prompt's tokens, and how often each token was emitted."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.sampling import apply_penalties
from engine.sequence import Sequence
from engine.upload import upload

_MIN_ROWS = 8

Ints = NDArray[np.int64]
Entrant = tuple[int, Ints, Ints]
"""Row, prompt and output so far of a sequence whose tokens are not yet on the device."""


class TokenCounts:
    """A row for each sequence with penalties, from its first token to its end, preemptions included.

    The host assigns rows (`rows_of`, `release`), the launching side fills them: every sampled token is
    counted right after sampling, so the host need not know it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._row_of: dict[Sequence, int] = {}
        self._free: list[int] = []
        self._prompts = torch.zeros((0, 0), dtype=torch.bool, device=device)
        self._counts = torch.zeros((0, 0), dtype=torch.int32, device=device)

    def rows_of(self, sequences: Ordered[Sequence]) -> tuple[list[int], list[Entrant]]:
        """Row of each sequence, and the newly entered ones, whose tokens are all known."""
        entrants: list[Entrant] = []
        for sequence in sequences:
            if sequence not in self._row_of:
                row = self._free.pop() if self._free else len(self._row_of)
                self._row_of[sequence] = row
                output = np.array(sequence.output_ids, dtype=np.int64)
                entrants.append((row, sequence.prompt_ids, output))
        return [self._row_of[sequence] for sequence in sequences], entrants

    def release(self, sequence: Sequence) -> None:
        """Release the row of an ended sequence."""
        row = self._row_of.pop(sequence, None)
        if row is not None:
            self._free.append(row)

    # -- on the launching side -------------------------------------------------------------------------

    def enter(self, entrants: Ordered[Entrant], vocabulary: int) -> None:
        """Initialise the rows of entrants, which may have been used before.

        Only token ids are copied, and counted on the device: a row of counts is as long as the vocabulary.
        """
        entering = np.array([row for row, _, _ in entrants], dtype=np.int64)
        if entering.max() >= len(self._counts):
            self._grow(int(entering.max()) + 1, vocabulary)
        rows, prompts, outputs = upload(
            self._device,
            entering,
            np.concatenate([row * vocabulary + prompt for row, prompt, _ in entrants]),
            np.concatenate([row * vocabulary + output for row, _, output in entrants]),
        )
        self._prompts.index_fill_(0, rows, False)
        self._prompts.view(-1).index_fill_(0, prompts, True)
        self._counts.index_fill_(0, rows, 0)
        ones = torch.ones_like(outputs, dtype=torch.int32)
        self._counts.view(-1).scatter_add_(0, outputs, ones)

    def _grow(self, rows: int, vocabulary: int) -> None:
        size = max(_MIN_ROWS, rows, 2 * len(self._counts))
        for name in ("_prompts", "_counts"):
            before = getattr(self, name)
            grown = torch.zeros((size, vocabulary), dtype=before.dtype, device=self._device)
            if len(before):
                grown[: len(before)] = before
            setattr(self, name, grown)

    def penalise(self, logits: torch.Tensor, rows: torch.Tensor, penalties: torch.Tensor) -> torch.Tensor:
        """Logits `[B, V]` of the sequences in `rows` `[B]`, with their penalties `[3, B]`."""
        return apply_penalties(logits, self._prompts[rows], self._counts[rows], *penalties)

    def count(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Count these tokens `[B]` in `rows` `[B]`."""
        ones = torch.ones_like(tokens, dtype=torch.int32)
        self._counts.index_put_((rows, tokens), ones, accumulate=True)
