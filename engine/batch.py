"""Tensors of one forward from a planned step.

Decodes stand first in the batch, one row each, then the prefills. Everything the forward needs is
written by numpy into one staging buffer, which goes to the device in one copy. A GPU holds the running
sequences, and where all of them decode it makes the inputs of the step itself (`engine.relay`): then
nothing is sent but who they are, when that has changed, and new pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from blis_py.core.blocks import block_count
from engine.kernels.attention import AttentionMetadata
from engine.launching import Ticket
from engine.relay import RelayBuffer
from engine.staging import BlockTables
from engine.staging_buffer import Arrays, Inputs, Ints, StagingBuffer, StagingLayout

_ONE_FURTHER: Ints = np.array([[0], [1], [1]])
"""A decode moves its position and the place of its keys and values."""
_PADDING: Ints = np.array([[0], [0], [-1]])
"""Input id, position and slot of a padded row."""


PROMPT_PLACES = 9
"""Prompts in a padded batch: the last one has the tokens of the padding."""


@dataclass(frozen=True, slots=True)
class PaddedMix:
    """Size of a batch with prompts that is padded: tokens, and places of decodes and of prompts."""

    tokens: int
    decodes: int
    prompts: int


@dataclass(slots=True)
class BatchTransfer:
    """Inputs on the device for a forward. They do not change until they have arrived."""

    layout: StagingLayout
    staged: bool
    """Whether the staging buffer has to be copied."""
    pages: torch.Tensor | None
    """Changes of the block tables."""
    decodes: int
    """In a mixed batch, sequences in front whose input ids are placeholders; -1 where the device makes all
    inputs itself, or the host has written the tokens."""

    @property
    def empty(self) -> bool:
        """Whether the device has all it needs."""
        return not self.staged and self.pages is None and self.decodes < 0


@dataclass(slots=True)
class AllDecodes:
    """A batch in which every sequence decodes: what of it is the same in the next step."""

    layout: StagingLayout
    rows: Ints
    """Slots of the sequences."""
    sent: bool = False
    """Whether the device has it, or the copy is under way."""


class BatchBuilder:
    """Fill the staging buffer from arrays with one entry per slot of a running sequence.

    Where the device makes the inputs of decodes, it takes their tokens out of the relay buffer, in which
    sampling has left them: the host writes placeholders, negative ids that stand for tokens it need not know.

    Args:
        largest_bucket: rows of the largest padded batch.
        on_device: whether the device makes the inputs of decodes; None = if it is a GPU, or `overlapped`.
        overlapped: batches are built while the forward before them runs, so host and device share nothing.
        check_relay: see that every token is in the relay buffer when it is taken out. Waits for the device.
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
        overlapped: bool = False,
        check_relay: bool = False,
    ) -> None:
        seqs = max(max_seqs, largest_bucket)
        self.block_size = block_size
        self.padding_row = max_seqs
        shared = device.type == "cpu" and not overlapped
        self.tables = BlockTables(max_seqs, block_count(max_model_len, block_size), device, shared)
        self._next: Ints = np.zeros((3, max_seqs), dtype=np.int64)
        """Latest token of the sequence in each slot, its position, and the place of its keys and values
        unless that is a new page. What it computes next when it decodes. Out of date while it decodes."""
        self._staging = StagingBuffer(max(max_tokens, seqs), seqs + PROMPT_PLACES, device, shared)
        self._counting: Ints = np.arange(max(max_tokens, seqs) + 1)
        self._shift, self._mask = block_size.bit_length() - 1, block_size - 1
        self._rows: Ints = np.zeros(0, dtype=np.int64)
        self._decoding: Ints = self._next[:, self._rows]
        """`[3, S]` of the sequences that decode, in the order of the batch, kept up to date here as long as
        they are the same."""
        self._latest: AllDecodes | None = None
        """The latest batch, if it was all decodes."""
        self._relay: RelayBuffer | None = None
        """None where the host writes the inputs of decodes."""
        if on_device or overlapped or (on_device is None and device.type != "cpu"):
            self._next[0] = -1 - np.arange(max_seqs)
            self._relay = RelayBuffer(self.tables.device, block_size, check_relay)
        self._pages: NDArray[np.int32] = np.zeros((seqs, self.tables.host.shape[1]), dtype=np.int32)
        """Pages of the sequences that decode, in the order of the batch; of no use where the device gathers
        them itself."""
        self._rows_of_pages: Ints | None = None
        """The slots they were gathered for."""
        self._gathered = torch.from_numpy(self._pages).to(device)
        self._reached = self._gathered
        """The part of them that the latest batch needed."""
        self.plan: Callable[[torch.Tensor, int], Mapping[int, torch.Tensor]] | None = None
        """Division of the work of decodes by attention, from their lengths and number; None on the CPU."""

    def begin(self, rows: Ints) -> list[int]:
        """Begin a batch in which the sequences in these slots decode.

        Args:
            rows: the same object as last time means the same sequences.

        Returns:
            Indices of those whose token goes to a new page: `new_page` must be called for each.
        """
        if rows is not self._rows:
            for known, latest in zip(self._next, self._decoding, strict=True):
                known[self._rows] = latest
            self._rows, self._decoding = rows, self._next.take(rows, axis=1)
        due: list[int] = (self._decoding[1] & self._mask == 0).nonzero()[0].tolist()
        return due

    def new_page(self, index: int, slot: int, block: int, page: int) -> None:
        """The page, block `block` of its sequence, that the token of the decode of this index goes to."""
        self.tables.write_one(slot, block, page)
        self._decoding[2, index] = page << self._shift
        if self._relay is None:
            self._pages[index, block] = page

    def sampled(self, rows: Ints, tokens: Ints) -> None:
        """The latest tokens of the sequences in these slots: the decodes first, as in the batch.

        Of no use where the relay buffer has them.
        """
        if self._relay is not None:
            return
        decodes = len(self._rows)
        self._decoding[0] = tokens[:decodes]
        if len(tokens) > decodes:
            self._next[0, rows[decodes:]] = tokens[decodes:]

    def decodes(self, padded: int = 0) -> StagingLayout:
        """The batch in which every sequence decodes, filled up to `padded` rows with nothing."""
        decoding, count = self._decoding, len(self._rows)
        size, latest = padded or count, self._latest
        alike = latest is not None and latest.rows is self._rows and len(latest.layout.host.rows) == size
        if alike and latest is not None and (self._relay is not None or self._staging.shared):
            layout = latest.layout  # what is the same for all such steps is there
        else:
            layout = self._staging.layout(size, size, size)
            self._latest = AllDecodes(layout, self._rows)
            self._write_decodes(layout.host)
        host, on_host = layout.host, self._relay is None
        if on_host:
            self._gather_pages()
            host.tokens[:, :count] = decoding
        np.add(decoding, _ONE_FURTHER, out=decoding)
        if on_host:
            host.seq_lens[:count] = decoding[1]
        return layout

    def _gather_pages(self) -> None:
        """Pages of the decodes side by side, unless they are there."""
        if self._rows is not self._rows_of_pages:
            self._rows_of_pages, used = self._rows, self.tables.used
            self._pages[: len(self._rows), :used] = self.tables.host[:, :used].take(self._rows, axis=0)

    def _write_decodes(self, host: Arrays) -> None:
        """Rows of the decodes, and the padding behind them."""
        rows, count = self._rows, len(self._rows)
        host.rows[:count] = host.emit_rows[:count] = rows
        host.query_start[:] = self._counting[: len(host.query_start)]
        host.tokens[:, count:] = _PADDING
        host.rows[count:] = host.emit_rows[count:] = self.padding_row
        host.seq_lens[count:] = 0

    def padding(self, size: int) -> Inputs:
        """A batch of so many padded rows, on the device."""
        self.begin(np.zeros(0, dtype=np.int64))
        return self.send(self.decodes(size))

    def mixed(
        self,
        slots: Ordered[int],
        starts: Ordered[int],
        chunks: Ordered[Ints],
        emits: Ordered[bool],
        padded: PaddedMix | None = None,
    ) -> StagingLayout:
        """The batch with prefills behind the decodes.

        Args:
            slots: of the prefills; their tables are complete.
            starts: position of the first token of each.
            chunks: token ids that each computes.
            emits: whether each is complete after this step.
            padded: fill up with nothing to this size: decodes and prompts without tokens, and a last prompt
                with those of the padding. Rows of logits are padded, too.
        """
        decodes, rows = len(self._rows), np.array(slots, dtype=np.int64)
        lengths = np.array([len(chunk) for chunk in chunks], dtype=np.int64)
        begins, ends = np.array(starts, dtype=np.int64), lengths.cumsum() + decodes
        after = begins + lengths
        emitting = [index for index, complete in enumerate(emits) if complete]
        tokens, count = int(ends[-1]), decodes + len(emitting)
        place = padded or PaddedMix(tokens, decodes, len(slots))
        size = place.decodes + place.prompts
        layout = self._staging.layout(place.tokens, size, size if padded else count)
        host = layout.host

        self._latest = None
        host.tokens[:, :decodes] = self._decoding
        host.tokens[:, tokens:] = _PADDING
        np.concatenate(chunks, out=host.tokens[0, decodes:tokens])
        # Token i of a sequence whose tokens begin at row `first` stands at position `begin + i`.
        shifts = np.repeat(ends - lengths - begins, lengths)
        positions = np.subtract(self._counting[decodes:tokens], shifts, out=host.tokens[1, decodes:tokens])
        self._places(np.repeat(rows, lengths), positions, out=host.tokens[2, decodes:tokens])
        host.emit[:decodes], host.emit_rows[:decodes] = self._counting[:decodes], self._rows
        host.emit[decodes:count], host.emit_rows[decodes:count] = ends[emitting] - 1, rows[emitting]
        host.emit[count:], host.emit_rows[count:] = 0, self.padding_row
        self._decoding += _ONE_FURTHER
        self._write_sequences(host, place, rows, ends, after)
        self._next[1][rows], self._next[2][rows] = after, host.tokens[2, ends - 1] + 1
        return layout

    def _write_sequences(self, host: Arrays, place: PaddedMix, rows: Ints, ends: Ints, after: Ints) -> None:
        """Slots, rows and lengths of the sequences, decodes and prompts in their places, the others empty.

        Args:
            rows: slots of the prompts; `ends`, the rows behind them; `after`, tokens in the cache after this
                step.
        """
        decodes, first = len(self._rows), place.decodes
        last = first + len(rows)
        host.rows[decodes:], host.seq_lens[decodes:] = self.padding_row, 0
        host.rows[:decodes], host.rows[first:last] = self._rows, rows
        host.seq_lens[:decodes], host.seq_lens[first:last] = self._decoding[1], after
        host.query_start[:decodes] = self._counting[:decodes]
        host.query_start[decodes : first + 1] = decodes
        host.query_start[first + 1 : last + 1] = ends
        host.query_start[last + 1 :] = ends[-1]
        host.query_start[-1] = place.tokens

    def _places(self, slots: Ints, positions: Ints, out: Ints) -> None:
        """Cache slots for keys and values of these positions of the sequences in these slots."""
        host = self.tables.host
        pages = host.take(slots * host.shape[1] + (positions >> self._shift)).astype(np.int64)
        np.add(pages << self._shift, positions & self._mask, out=out)

    def send(self, layout: StagingLayout) -> Inputs:
        """Everything the forward reads, on the device."""
        self.transfer(self.pack(layout))
        return layout.device

    def pack(self, layout: StagingLayout) -> BatchTransfer:
        """Copies for the batch just built."""
        latest = self._latest
        staged = not self._staging.shared and (self._relay is None or latest is None or not latest.sent)
        if latest is not None:
            latest.sent = True
        decodes = len(self._rows) if latest is None and self._relay is not None else -1
        return BatchTransfer(layout, staged, self.tables.changes(), decodes)

    def transfer(self, parcel: BatchTransfer) -> None:
        """On the launching side: starts the copies; tokens out of the relay buffer replace placeholders."""
        if parcel.pages is not None:
            self.tables.apply(parcel.pages)
        if parcel.staged:
            self._staging.send(parcel.layout)
        if self._relay is not None and parcel.decodes >= 0:
            self._relay.replace_placeholders(parcel.layout.device, parcel.decodes)

    def read_by(self, reader: Ticket[Any], parcel: BatchTransfer) -> None:
        """The copies of a batch are under way; its buffers are not written again before they are done."""
        if parcel.pages is not None:
            self.tables.ring.read_by(reader)
        if parcel.staged:
            self._staging.ring.read_by(reader)

    def taken(self, inputs: Inputs, decodes: int) -> None:
        """On the launching side: the device has made the inputs of so many decodes."""
        if self._relay is not None:
            self._relay.taken(inputs, decodes)

    def keep(self, inputs: Inputs, tokens: torch.Tensor) -> None:
        """On the launching side: sampled tokens `[R]` go into the relay buffer, if there is one."""
        if self._relay is not None:
            self._relay.keep(inputs.emit_rows[: len(tokens)], tokens)

    def metadata(
        self,
        inputs: Inputs,
        *,
        num_decodes: int,
        max_query_len: int,
        max_seq_len: int,
        usual_prompts: int | None = None,
    ) -> AttentionMetadata:
        """Inputs of the attention; where all sequences decode, a GPU also makes their token inputs now."""
        width = block_count(max_seq_len, self.block_size)
        if num_decodes < inputs.rows.shape[0]:
            tables = self.tables.device[:, :width].index_select(0, inputs.rows)
        else:
            tables = self._reached
            if tables.shape != (num_decodes, width):
                tables = self._reached = self._gathered[:num_decodes, :width]
            if self._relay is not None:
                self._relay.make_inputs(inputs, self._gathered[:num_decodes])
        return AttentionMetadata(
            query_start=inputs.query_start,
            seq_lens=inputs.seq_lens,
            block_tables=tables,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            num_decodes=num_decodes,
            usual_prompts=usual_prompts,
            decode_plans=self.plan(inputs.seq_lens, num_decodes) if self.plan and num_decodes else {},
        )
