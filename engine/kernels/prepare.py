"""The inputs of a step in which every sequence decodes, made on the device out of what it knows of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.kernels import backend
from engine.kernels.reference import prepare as reference

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class DecodeState:
    """What the device knows of the running sequences: one entry per slot, the last for padding."""

    tokens: Tensor
    """[N] int64: the latest token of each."""
    positions: Tensor
    """[N] int64: where that token stands in its sequence; -1 = padding."""
    tables: Tensor
    """[N, W] int32: its pages."""


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """What the forward of B decodes reads."""

    input_ids: Tensor
    """[B] int64"""
    positions: Tensor
    """[B] int64"""
    slots: Tensor
    """[B] int64: page * page_size + offset of the new token; -1 = store nothing."""
    seq_lens: Tensor
    """[B] int32: tokens in the cache after the step; 0 = padding."""
    block_tables: Tensor
    """[B, W] int32. Only the columns that a length reaches are written."""


def prepare_decodes(rows: Tensor, state: DecodeState, page_size: int, inputs: DecodeInputs) -> None:
    """Fills `inputs` for the sequences in the slots `rows`, [B] int64, and moves them one position on.

    A slot may occur once, the padding's as often as needed. Nothing depends on values the host would have
    to look at, so a CUDA graph can begin with it.
    """
    if backend.choose(rows) == "reference":
        reference.prepare_decodes(rows, state, page_size, inputs)
    else:
        from engine.kernels.triton import prepare

        prepare.prepare_decodes(rows, state, page_size, inputs)
