"""The staging buffer: all inputs of a forward, written side by side by the host and sent in one copy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from engine.staging import PinnedRing

Ints = NDArray[np.int64]
_CACHED_LAYOUTS = 1024
_ALIGNMENT = 16
"""Alignment in bytes of every array, for any batch. Triton specialises a kernel for addresses that are
multiples of 16, the widest load, and compiles it again for others."""


@dataclass(frozen=True, slots=True)
class Arrays:
    """Host side of one layout of the staging buffer."""

    tokens: Ints
    """[3, T], each row contiguous: input ids, positions, and the slot mapping (cache location of keys and
    values, page * page_size + offset; -1 = nowhere)."""
    rows: Ints
    """[S] row of each sequence in the block tables."""
    emit: Ints
    """[R] rows of the hidden states that need logits."""
    emit_rows: Ints
    """[R] rows of their sequences in the block tables."""
    query_start: NDArray[np.int32]
    """[S + 1] first query row of each sequence; the last entry is T."""
    seq_lens: NDArray[np.int32]
    """[S] tokens in the cache after this step; 0 = a padded row."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Device side of the same layout, with `tokens` split up."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    rows: torch.Tensor
    emit: torch.Tensor
    emit_rows: torch.Tensor
    query_start: torch.Tensor
    seq_lens: torch.Tensor


@dataclass(frozen=True, slots=True)
class StagingLayout:
    """One division of the staging buffer among the arrays."""

    host: Arrays
    device: Inputs
    written: torch.Tensor
    """The bytes written by the host."""


class StagingBuffer:
    """Rotating pinned host buffers and their device image; if shared, one and the same.

    Equal sizes have equal addresses, so the inputs of a captured graph stay in place. The copy to the device
    is asynchronous, and the image is overwritten after the forward that reads it.

    Args:
        shared: host and device use one buffer, so no forward may run while the host writes; None = on the
        CPU.
    """

    def __init__(
        self, max_tokens: int, max_seqs: int, device: torch.device, shared: bool | None = None
    ) -> None:
        nbytes = _places(max_tokens, max_seqs, max_seqs)[-1]
        shared = device.type == "cpu" if shared is None else shared
        self.ring = PinnedRing(1 if shared else 2, nbytes, device.type == "cuda")
        self._device = (
            self.ring.buffers[0] if shared else torch.zeros(nbytes, dtype=torch.uint8, device=device)
        )
        self.shared = shared
        self._layouts: dict[tuple[int, int, int, int], StagingLayout] = {}

    def layout(self, tokens: int, seqs: int, emitted: int) -> StagingLayout:
        """The next buffer, divided for T tokens of S sequences with R rows of logits, to be filled."""
        key = (self.ring.next(), tokens, seqs, emitted)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= _CACHED_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = self._divide(*key)
        return layout

    def _divide(self, index: int, tokens: int, seqs: int, emitted: int) -> StagingLayout:
        written = self.ring.buffers[index]
        *starts, nbytes = _places(tokens, seqs, emitted)
        lengths = _lengths(tokens, seqs, emitted)

        def parts(buffer: torch.Tensor) -> list[torch.Tensor]:
            return [
                buffer[start : start + dtype.itemsize * length].view(dtype)
                for start, (dtype, length) in zip(starts, lengths, strict=True)
            ]

        _, _, _, *others = parts(written)
        row = starts[1]
        whole = written[: 3 * row].view(torch.int64).view(3, row // 8)[:, :tokens]
        host = Arrays(whole.numpy(), *(part.numpy() for part in others))
        return StagingLayout(host, Inputs(*parts(self._device)), written[:nbytes])

    def send(self, layout: StagingLayout) -> None:
        """Copy a layout to the device at once, on the launching side."""
        if not self.shared:
            self._device[: layout.written.nbytes].copy_(layout.written, non_blocking=True)


def _lengths(tokens: int, seqs: int, emitted: int) -> list[tuple[torch.dtype, int]]:
    """Element type and length of each array, in the order of `Inputs`."""
    wide = (tokens, tokens, tokens, seqs, emitted, emitted)
    return [(torch.int64, n) for n in wide] + [(torch.int32, n) for n in (seqs + 1, seqs)]


def _places(tokens: int, seqs: int, emitted: int) -> list[int]:
    """Offsets in bytes of each array, and the end of the last one."""
    sizes = (dtype.itemsize * length for dtype, length in _lengths(tokens, seqs, emitted))
    return list(accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes), initial=0))
