"""From a planned step to the tensors of one forward.

Decodes stand first in the batch, one row each, then the prefills. Everything the forward needs is
written by numpy into one staging buffer, which goes to the device in one copy. A GPU remembers the running
sequences, and where all of them decode it makes the inputs of the step itself (`kernels.prepare`): then
nothing is sent but who they are, when that has changed, and new pages.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.attention import AttentionMetadata
from engine.kernels.prepare import DecodeInputs, DecodeState, prepare_decodes

Ints = NDArray[np.int64]
_CACHED_LAYOUTS = 1024
_ALIGNMENT = 16
"""Bytes to which every array is aligned, whatever the batch. Triton compiles a kernel once for addresses that
are multiples of 16, as wide as the widest load, and again for those that are not."""
_ONE_FURTHER: Ints = np.array([[0], [1], [1]])
"""A decode moves its position and the place of its keys and values."""
_PADDING: Ints = np.array([[0], [0], [-1]])
"""Input id, position and slot of a padded row."""


@dataclass(frozen=True, slots=True)
class Arrays:
    """The host's side of one layout of the staging buffer."""

    tokens: Ints
    """[3, T], each row contiguous: input ids, positions, and slots, where keys and values go: page *
    page_size + offset; -1 = nowhere."""
    rows: Ints
    """[S] row of each sequence in the block tables."""
    emit: Ints
    """[R] rows of the hidden states that need logits."""
    emit_rows: Ints
    """[R] rows of their sequences in the block tables."""
    query_start: NDArray[np.int32]
    """[S + 1]"""
    seq_lens: NDArray[np.int32]
    """[S] tokens in the cache after this step; 0 = a padded row."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The device's side of the same, `tokens` taken apart."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    rows: torch.Tensor
    emit: torch.Tensor
    emit_rows: torch.Tensor
    query_start: torch.Tensor
    seq_lens: torch.Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to divide the staging buffer among the arrays."""

    host: Arrays
    device: Inputs
    nbytes: int


class StagingBuffer:
    """Pinned host memory and its image on the device; on the CPU one and the same.

    Equal sizes get equal places, so the inputs of a captured graph stay where they are. The copy to the
    device runs while the host goes on, so the host waits for it before it writes here again.
    """

    def __init__(self, max_tokens: int, max_seqs: int, device: torch.device) -> None:
        nbytes = _places(max_tokens, max_seqs, max_seqs)[-1]
        on_cuda = device.type == "cuda"
        self._host = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=on_cuda)
        shared = device.type == "cpu"
        self._device = self._host if shared else torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self._sent = torch.cuda.Event() if on_cuda else None
        self._layouts: dict[tuple[int, int, int], Layout] = {}

    def layout(self, tokens: int, seqs: int, emitted: int) -> Layout:
        """The buffer divided for T tokens of S sequences with R rows of logits, to be filled."""
        if self._sent is not None:
            self._sent.synchronize()
        key = (tokens, seqs, emitted)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= _CACHED_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = self._divide(tokens, seqs, emitted)
        return layout

    def _divide(self, tokens: int, seqs: int, emitted: int) -> Layout:
        *starts, nbytes = _places(tokens, seqs, emitted)
        lengths = _lengths(tokens, seqs, emitted)

        def parts(buffer: torch.Tensor) -> list[torch.Tensor]:
            return [
                buffer[start : start + dtype.itemsize * length].view(dtype)
                for start, (dtype, length) in zip(starts, lengths, strict=True)
            ]

        _, _, _, *others = parts(self._host)
        row = starts[1]
        whole = self._host[: 3 * row].view(torch.int64).view(3, row // 8)[:, :tokens]
        host = Arrays(whole.numpy(), *(part.numpy() for part in others))
        return Layout(host, Inputs(*parts(self._device)), nbytes)

    def send(self, layout: Layout) -> None:
        """To the device, in one copy."""
        if self._device is not self._host:
            self._device[: layout.nbytes].copy_(self._host[: layout.nbytes], non_blocking=True)
        if self._sent is not None:
            self._sent.record()


def _lengths(tokens: int, seqs: int, emitted: int) -> list[tuple[torch.dtype, int]]:
    """Element type and length of each array, in the order of `Inputs`."""
    wide = (tokens, tokens, tokens, seqs, emitted, emitted)
    return [(torch.int64, n) for n in wide] + [(torch.int32, n) for n in (seqs + 1, seqs)]


def _places(tokens: int, seqs: int, emitted: int) -> list[int]:
    """Where each array begins, in bytes, and where the last one ends."""
    sizes = (dtype.itemsize * length for dtype, length in _lengths(tokens, seqs, emitted))
    return list(accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes), initial=0))


class BlockTables:
    """Pages of each running sequence, one row each, written when they change.

    On CUDA the device has a copy, and changes are sent before the next forward.
    """

    def __init__(self, max_seqs: int, width: int, device: torch.device) -> None:
        self.host: NDArray[np.int32] = np.zeros((max_seqs + 1, width), dtype=np.int32)
        """The last row belongs to nobody: padding."""
        self._width = width
        self._on_cpu = device.type == "cpu"
        mirror = torch.from_numpy(self.host)
        self.device = mirror if self._on_cpu else mirror.to(device)
        self._places: list[int] = []
        self._pages: list[int] = []

    def write(self, row: int, first: int, pages: list[int]) -> None:
        """Pages of a sequence, from its block `first` on."""
        self.host[row, first : first + len(pages)] = pages
        if not self._on_cpu:
            start = row * self._width + first
            self._places += range(start, start + len(pages))
            self._pages += pages

    def write_one(self, row: int, block: int, page: int) -> None:
        """The same for one page."""
        self.host[row, block] = page
        if not self._on_cpu:
            self._places.append(row * self._width + block)
            self._pages.append(page)

    def send(self) -> None:
        """Brings the device's copy up to date."""
        if not self._places:
            return
        changes = torch.tensor([self._places, self._pages], dtype=torch.int64).to(self.device.device)
        self.device.view(-1).index_copy_(0, changes[0], changes[1].to(torch.int32))
        self._places, self._pages = [], []


class BatchBuilder:
    """Fills the staging buffer, from arrays that have one entry per slot of a running sequence.

    Args:
        largest_bucket: rows of the largest padded batch.
        on_device: whether the device makes the inputs of decodes; None = if it is a GPU.
    """

    def __init__(
        self,
        *,
        max_seqs: int,
        max_tokens: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
        largest_bucket: int = 0,
        on_device: bool | None = None,
    ) -> None:
        seqs = max(max_seqs, largest_bucket)
        self.block_size = block_size
        self.padding_row = max_seqs
        self.tables = BlockTables(max_seqs, -(-max_model_len // block_size), device)
        self._next: Ints = np.zeros((3, max_seqs), dtype=np.int64)
        """Of the sequence in each slot: its latest token, its position, and where its keys and values go
        unless that is a new page. What it computes next when it decodes. Out of date while it decodes."""
        self._staging = StagingBuffer(max(max_tokens, seqs), seqs, device)
        self._counting: Ints = np.arange(max(max_tokens, seqs) + 1)
        self._shift, self._mask = block_size.bit_length() - 1, block_size - 1
        self._rows: Ints = np.zeros(0, dtype=np.int64)
        self._decoding: Ints = self._next[:, self._rows]
        """`[3, S]` of the sequences that decode, in the order of the batch, kept up to date here as long as
        they are the same."""
        self._filled: tuple[Layout, Ints] | None = None
        """Layout and slots of the latest batch, if it was all decodes."""
        self._unsent = True
        """Whether the device has not seen these yet."""
        self._state: DecodeState | None = None
        if on_device or (on_device is None and device.type != "cpu"):
            positions = torch.full((max_seqs + 1,), -1, dtype=torch.int64, device=device)
            self._state = DecodeState(torch.zeros_like(positions), positions, self.tables.device)
        self._pages: NDArray[np.int32] = np.zeros((seqs, self.tables.host.shape[1]), dtype=np.int32)
        """Pages of the sequences that decode, in the order of the batch; of no use where the device gathers
        them itself."""
        self._gathered = torch.from_numpy(self._pages).to(device)
        self._reached = self._gathered
        """The part of them that the latest batch needed."""

    def begin(self, rows: Ints) -> list[int]:
        """Begins a batch in which the sequences in these slots decode.

        Args:
            rows: the same object as last time means the same sequences.

        Returns:
            Indices of those whose token goes to a new page: `new_page` must be called for each.
        """
        if rows is not self._rows:
            self._next[:, self._rows] = self._decoding
            self._rows, self._decoding = rows, self._next.take(rows, axis=1)
            if self._state is None:
                self._pages[: len(rows)] = self.tables.host[rows]
        due: list[int] = (self._decoding[1] & self._mask == 0).nonzero()[0].tolist()
        return due

    def new_page(self, index: int, slot: int, block: int, page: int) -> None:
        """The page, block `block` of its sequence, that the token of the decode of this index goes to."""
        self.tables.write_one(slot, block, page)
        self._decoding[2, index] = page << self._shift
        if self._state is None:
            self._pages[index, block] = page

    def sampled(self, rows: Ints, tokens: Ints) -> None:
        """The latest tokens of the sequences in these slots: the decodes first, as in the batch."""
        decodes = len(self._rows)
        self._decoding[0] = tokens[:decodes]
        if len(tokens) > decodes:
            self._next[0, rows[decodes:]] = tokens[decodes:]

    def decodes(self, padded: int = 0) -> Layout:
        """The batch in which every sequence decodes, filled up to `padded` rows with nothing."""
        rows, decoding, count = self._rows, self._decoding, len(self._rows)
        size = padded or count
        layout = self._staging.layout(size, size, size)
        host = layout.host
        on_host = self._state is None
        if on_host:
            host.tokens[:, :count] = decoding
        np.add(decoding, _ONE_FURTHER, out=decoding)
        if on_host:
            host.seq_lens[:count] = decoding[1]
        if self._filled is None or self._filled[0] is not layout or self._filled[1] is not rows:
            self._filled, self._unsent = (layout, rows), True
            host.rows[:count] = host.emit_rows[:count] = rows
            host.query_start[:] = self._counting[: size + 1]
            host.tokens[:, count:] = _PADDING
            host.rows[count:] = host.emit_rows[count:] = self.padding_row
            host.seq_lens[count:] = 0
        return layout

    def padding(self, size: int) -> Inputs:
        """A batch of so many padded rows, on the device."""
        self.begin(np.zeros(0, dtype=np.int64))
        return self.send(self.decodes(size))

    def mixed(
        self, slots: Ordered[int], starts: Ordered[int], chunks: Ordered[Ints], emits: Ordered[bool]
    ) -> Layout:
        """The batch with prefills behind the decodes.

        Args:
            slots: of the prefills; their tables are complete.
            starts: position of the first token of each.
            chunks: token ids that each computes.
            emits: whether each is complete after this step.
        """
        decodes, prefill_rows = len(self._rows), np.array(slots, dtype=np.int64)
        rows = np.concatenate((self._rows, prefill_rows))
        lengths = np.ones(len(rows), dtype=np.int64)
        lengths[decodes:] = [len(chunk) for chunk in chunks]
        begins = np.concatenate((self._decoding[1], np.array(starts, dtype=np.int64)))
        ends = np.cumsum(lengths)
        emitting = np.concatenate((np.ones(decodes, dtype=bool), np.array(emits, dtype=bool)))
        emitted = ends[emitting] - 1
        layout = self._staging.layout(int(ends[-1]), len(rows), len(emitted))
        host = layout.host

        self._filled = None
        host.tokens[:, :decodes] = self._decoding
        ids, positions, places = host.tokens[:, decodes:]
        np.concatenate(chunks, out=ids)
        # Token i of a sequence whose tokens begin at row `first` stands at position `begin + i`.
        shifts = np.repeat((ends - lengths - begins)[decodes:], lengths[decodes:])
        np.subtract(self._counting[decodes : ends[-1]], shifts, out=positions)
        pages = self.tables.host[np.repeat(prefill_rows, lengths[decodes:]), positions >> self._shift]
        np.add(pages.astype(np.int64) << self._shift, positions & self._mask, out=places)
        host.rows[:] = rows
        host.emit[:], host.emit_rows[:] = emitted, rows[emitting]
        host.query_start[0] = 0
        host.query_start[1:] = ends
        host.seq_lens[:] = begins + lengths
        self._decoding += _ONE_FURTHER
        self._next[1:, prefill_rows] = host.tokens[1:, ends[decodes:] - 1] + 1
        return layout

    def send(self, layout: Layout) -> Inputs:
        """Everything the forward reads, on the device."""
        self.tables.send()
        inputs, state = layout.device, self._state
        if state is None:
            self._staging.send(layout)
        elif self._filled is None:  # a mixed batch: the state follows it
            self._staging.send(layout)
            state.positions.index_copy_(0, inputs.rows, inputs.seq_lens.long())
        elif self._unsent:
            self._staging.send(layout)
            self._unsent = False
        return inputs

    def keep(self, inputs: Inputs, tokens: torch.Tensor) -> None:
        """Sampled tokens `[R]` become the next inputs of their sequences, without a way through the host."""
        if self._state is not None:
            self._state.tokens.index_copy_(0, inputs.emit_rows[: len(tokens)], tokens)

    def metadata(
        self, inputs: Inputs, *, num_decodes: int, max_query_len: int, max_seq_len: int
    ) -> AttentionMetadata:
        """What the attention needs; where all sequences decode, a GPU also makes their inputs now."""
        width = -(-max_seq_len // self.block_size)
        if num_decodes < inputs.rows.shape[0]:
            tables = self.tables.device[:, :width].index_select(0, inputs.rows)
        else:
            tables = self._reached
            if tables.shape != (num_decodes, width):
                tables = self._reached = self._gathered[:num_decodes, :width]
            if self._state is not None:
                whole = self._gathered[:num_decodes]
                made = DecodeInputs(inputs.input_ids, inputs.positions, inputs.slots, inputs.seq_lens, whole)
                prepare_decodes(inputs.rows, self._state, self.block_size, made)
        return AttentionMetadata(
            query_start=inputs.query_start,
            seq_lens=inputs.seq_lens,
            block_tables=tables,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            num_decodes=num_decodes,
        )
