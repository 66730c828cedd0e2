"""Inputs of a decode-only step, computed on the device from its own state."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.kernels.op import op

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class DecodeState:
    """Device state of the running sequences: one entry per slot, the last for padding."""

    tokens: Tensor
    """[N] int64: the latest token of each sequence."""
    positions: Tensor
    """[N] int64: position of that token in its sequence; -1 = padding."""
    tables: Tensor
    """[N, W] int32: the block table of each sequence."""


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Inputs of the forward of B decodes."""

    input_ids: Tensor
    """[B] int64: token ids."""
    positions: Tensor
    """[B] int64: positions."""
    slots: Tensor
    """[B] int64: page * page_size + offset of the new token; -1 = store nothing."""
    seq_lens: Tensor
    """[B] int32: tokens in the cache after the step; 0 = padding."""
    block_tables: Tensor
    """[B, W] int32. Only the columns that a length reaches are written."""


@op("triton")
def prepare_decodes(rows: torch.Tensor, state: DecodeState, page_size: int, inputs: DecodeInputs) -> None:
    """Fill `inputs` for the sequences in the slots `rows`, [B] int64, and advance them by one position.

    A slot may occur once, the padding slot repeatedly. Nothing depends on values the host would have to read,
    so a CUDA graph can begin with it.
    """
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
