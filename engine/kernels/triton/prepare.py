"""Decode inputs: one program per row of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from engine.kernels.prepare import DecodeInputs, DecodeState
from engine.kernels.promise import Promise

_COLUMNS = 256


@triton.jit(do_not_specialize=["stride_t", "stride_b"])
def _prepare_decodes(
    rows,
    tokens,
    state_positions,
    tables,
    stride_t,
    input_ids,
    positions,
    slots,
    seq_lens,
    block_tables,
    stride_b,
    PAGE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + index)
    position = tl.load(state_positions + row)
    if position < 0:
        tl.store(input_ids + index, 0)
        tl.store(positions + index, 0)
        tl.store(slots + index, -1)
        tl.store(seq_lens + index, 0)
    else:
        table = tables + row * stride_t
        page = tl.load(table + position // PAGE).to(tl.int64)
        tl.store(input_ids + index, tl.load(tokens + row))
        tl.store(positions + index, position)
        tl.store(slots + index, page * PAGE + position % PAGE)
        tl.store(seq_lens + index, (position + 1).to(tl.int32))
        tl.store(state_positions + row, position + 1)
        used = position // PAGE + 1
        columns = tl.arange(0, COLUMNS)
        for first in range(0, used, COLUMNS):
            inside = first + columns < used
            entries = tl.load(table + first + columns, mask=inside, other=0)
            tl.store(block_tables + index * stride_b + first + columns, entries, mask=inside)


def prepare_decodes(rows: torch.Tensor, state: DecodeState, page_size: int, inputs: DecodeInputs) -> None:
    """See `engine.kernels.prepare.prepare_decodes`."""
    if not len(rows):
        return
    _prepare_decodes[(len(rows),)](
        rows,
        state.tokens,
        state.positions,
        state.tables,
        state.tables.stride(0),
        inputs.input_ids,
        inputs.positions,
        inputs.slots,
        inputs.seq_lens,
        inputs.block_tables,
        inputs.block_tables.stride(0),
        PAGE=page_size,
        COLUMNS=_COLUMNS,
        num_warps=2,
    )


def promise(kernel: str, constants: Mapping[str, Any]) -> Promise:
    """See `engine.kernels.aot`."""
    return Promise(max_registers=64)
