"""The relay buffer: tokens pass from sampling to the next forward without a detour through the host."""

from __future__ import annotations

import torch

from engine.kernels.prepare import DecodeInputs, DecodeState, prepare_decodes
from engine.staging_buffer import Inputs

POISON = -(1 << 40)
"""Marks, when checking, an entry of the relay buffer whose token has been read."""


class RelayBuffer:
    """Device state of the running sequences, by slot: latest token, position, pages.

    Sampling writes tokens to it, and a forward reads its inputs from it. All but the constructor belongs to
    the launching side.

    Args:
        tables: pages of each slot, on the device, the last row for padding.
        check: verify that every token is present when read. Waits for the device.
    """

    def __init__(self, tables: torch.Tensor, block_size: int, check: bool) -> None:
        positions = torch.full((len(tables),), -1, dtype=torch.int64, device=tables.device)
        self._state = DecodeState(torch.zeros_like(positions), positions, tables)
        self._block_size, self._check = block_size, check

    def keep(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Store sampled tokens `[R]` of the sequences in slots `rows` `[R]` as their next inputs.

        In place of -1, which ends its sequence on the host, the forward gets token 0.
        """
        self._state.tokens.index_copy_(0, rows, tokens.clamp_min(0))

    def make_inputs(self, inputs: Inputs, pages: torch.Tensor) -> None:
        """Compute the inputs of a decode-only batch, and the pages `[B, max_pages]` they attend to."""
        made = DecodeInputs(inputs.input_ids, inputs.positions, inputs.slots, inputs.seq_lens, pages)
        prepare_decodes(inputs.rows, self._state, self._block_size, made)

    def replace_placeholders(self, inputs: Inputs, decodes: int) -> None:
        """Fill in the tokens of a mixed batch, whose first sequences decode; the host has written the
        rest."""
        gathered = inputs.input_ids[:decodes]
        torch.index_select(self._state.tokens, 0, inputs.rows[:decodes], out=gathered)
        self.taken(inputs, decodes)
        lengths = inputs.seq_lens.long()
        padding = (lengths == 0).long()  # whose position stays what it is, -1
        self._state.positions.index_copy_(0, inputs.rows, lengths - padding)

    def taken(self, inputs: Inputs, decodes: int) -> None:
        """Mark the inputs of `decodes` decodes as read; when checking, each token may be read once.

        Raises:
            AssertionError: a token was read before it was written, or twice.
        """
        if not self._check:
            return
        tokens = inputs.input_ids[:decodes]
        if bool((tokens < 0).any()):
            raise AssertionError(f"taken out of the relay buffer before they were there: {tokens.tolist()}")
        self._state.tokens.index_fill_(0, inputs.rows[:decodes], POISON)
