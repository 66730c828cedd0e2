"""Decode inputs in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from engine.kernels.prepare import DecodeInputs, DecodeState


def prepare_decodes(rows: torch.Tensor, state: DecodeState, page_size: int, inputs: DecodeInputs) -> None:
    """See `engine.kernels.prepare.prepare_decodes`."""
    positions = state.positions.index_select(0, rows)
    padding = positions < 0
    at = positions.clamp(min=0)
    tables = state.tables.index_select(0, rows)
    pages = tables.gather(1, (at // page_size).unsqueeze(1)).squeeze(1).long()
    inputs.input_ids.copy_(state.tokens.index_select(0, rows).masked_fill(padding, 0))
    inputs.positions.copy_(at)
    inputs.slots.copy_((pages * page_size + at % page_size).masked_fill(padding, -1))
    inputs.seq_lens.copy_(positions + 1)
    inputs.block_tables.copy_(tables)
    state.positions.index_copy_(0, rows, torch.where(padding, positions, positions + 1))
