"""The relay buffer: tokens go from sampling to the next forward without a way through the host."""

from __future__ import annotations

import torch

from engine.kernels.prepare import DecodeInputs, DecodeState, prepare_decodes
from engine.staging_buffer import Inputs

POISON = -(1 << 40)
"""Stands in the relay buffer, while that is checked, where a token has been taken out."""


class RelayBuffer:
    """What the device knows of the running sequences, by slot: latest token, position, pages.

    Sampling leaves tokens in it, and a forward takes its inputs out. All but the constructor is for the
    launching side.

    Args:
        tables: pages of each slot, on the device, the last row for padding.
        check: see that every token is there when it is taken out. Waits for the device.
    """

    def __init__(self, tables: torch.Tensor, block_size: int, check: bool) -> None:
        positions = torch.full((len(tables),), -1, dtype=torch.int64, device=tables.device)
        self._state = DecodeState(torch.zeros_like(positions), positions, tables)
        self._block_size, self._check = block_size, check

    def keep(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Sampled tokens `[R]` of the sequences in these slots become their next inputs."""
        self._state.tokens.index_copy_(0, rows, tokens)

    def make_inputs(self, inputs: Inputs, pages: torch.Tensor) -> None:
        """The inputs of a batch in which every sequence decodes, and the pages they attend to."""
        made = DecodeInputs(inputs.input_ids, inputs.positions, inputs.slots, inputs.seq_lens, pages)
        prepare_decodes(inputs.rows, self._state, self._block_size, made)

    def replace_placeholders(self, inputs: Inputs, decodes: int) -> None:
        """The same for a mixed batch, whose first sequences decode: the host has written all but tokens."""
        gathered = inputs.input_ids[:decodes]
        torch.index_select(self._state.tokens, 0, inputs.rows[:decodes], out=gathered)
        self.taken(inputs, decodes)
        self._state.positions.index_copy_(0, inputs.rows, inputs.seq_lens.long())

    def taken(self, inputs: Inputs, decodes: int) -> None:
        """The inputs of so many decodes have been made; checked, each token comes out once."""
        if not self._check:
            return
        tokens = inputs.input_ids[:decodes]
        if bool((tokens < 0).any()):
            raise AssertionError(f"taken out of the relay buffer before they were there: {tokens.tolist()}")
        self._state.tokens.index_fill_(0, inputs.rows[:decodes], POISON)
