"""Tile arithmetic shared by the decode and the prefill attention kernels."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634


@triton.jit
def tile_offsets(
    table, start, seq_len, dims, stride_page, stride_slot, PAGE_SIZE: tl.constexpr, N: tl.constexpr
):
    """Where the N tokens from `start` on lie in a head's cache: offsets `[N, dims]`, tokens and valid `[N]`.

    One entry of the page table serves the tile where a page holds it whole.
    """
    tokens = start + tl.arange(0, N)
    valid = tokens < seq_len
    if PAGE_SIZE % N == 0:
        pages = tl.load(table + start // PAGE_SIZE)
    else:
        pages = tl.load(table + tokens // PAGE_SIZE, mask=valid, other=0)
    rows = pages.to(tl.int64) * stride_page + (tokens % PAGE_SIZE) * stride_slot
    return rows[:, None] + dims[None, :], tokens, valid


@triton.jit
def load_tile(pointers, valid, dims, HEAD_DIM: tl.constexpr, MASKED: tl.constexpr, F32: tl.constexpr):
    """Keys or values `[N, dims]`.

    In a masked tile, rows that are not valid read nothing and are zero: what lies behind a sequence's end
    may be another sequence's, or NaN.
    """
    if pointers.shape[1] != HEAD_DIM:
        inside = (dims < HEAD_DIM)[None, :]
        tile = tl.load(pointers, mask=valid[:, None] & inside if MASKED else inside, other=0.0)
    elif MASKED:
        tile = tl.load(pointers, mask=valid[:, None], other=0.0)
    else:
        tile = tl.load(pointers)
    return tile.to(tl.float32) if F32 else tile


@triton.jit
def softmax_step(scores, peak, total, acc, values, scale_log2):
    """One tile of the running softmax: scores `[M, N]`, values `[N, D]`; peak and total `[M]`, acc `[M, D]`.

    `peak` is the largest unscaled score so far. Rows that have seen nothing yet keep peak -inf and total 0.
    """
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak) * scale_log2
    shrink = tl.exp2(peak * scale_log2 - base)
    weights = tl.exp2(scores * scale_log2 - base[:, None])
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
    return new_peak, total, acc


def padded_head_dim(head_dim: int) -> int:
    """The head dimension of a tile: a power of two that tensor cores take."""
    return max(16, triton.next_power_of_2(head_dim))
