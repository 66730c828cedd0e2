"""Common parts of the decode and prefill attention kernels: a tile of rows attends to tiles of keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from engine.kernels.triton.autotune import INTERPRETED

LOG2_E = 1.4426950408889634
_SCALE_OF_SINKS = tl.constexpr(LOG2_E)
F32 = tl.constexpr(INTERPRETED)
"""Whether loads are converted to float32; see `INTERPRETED`."""


class Context(NamedTuple):
    """One sequence as seen by one KV head."""

    # Not `values`: the name of an attribute of Triton's own tuples.
    k: Any
    """Pointer to this head's keys in page 0, `[page_size, D]`; `v`, to its values, likewise."""
    v: Any
    table: Any
    """Pointer to the sequence's pages in order."""
    length: Any
    """Tokens, the new ones included."""


class Softmax(NamedTuple):
    """A running softmax over M rows. Rows without keys so far have peak -inf and total 0."""

    peak: Any
    """`[M]`, the largest unscaled score so far."""
    total: Any
    """`[M]`, the sum of weights relative to the peak."""
    acc: Any
    """`[M, D]`, the sum of values by these weights."""


@triton.constexpr_function
def padded_head_dim(head_dim: int) -> int:
    """The head dimension of a tile: a power of two that tensor cores take."""
    return max(16, triton.next_power_of_2(head_dim))


@triton.jit
def context_of(
    sequence,
    head,
    k_cache,
    v_cache,
    block_tables,
    stride_table,
    length,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Context of a sequence in caches `[num_pages, Hk, page_size, D]`, contiguous."""
    head_start = head.to(tl.int64) * (PAGE_SIZE * HEAD_DIM)
    table = block_tables + sequence.to(tl.int64) * stride_table
    return Context(k_cache + head_start, v_cache + head_start, table, length)


@triton.jit
def empty_softmax(M: tl.constexpr, HEAD_DIM: tl.constexpr):
    """The softmax before the first key."""
    peak = tl.full([M], float("-inf"), tl.float32)
    return Softmax(peak, tl.zeros([M], tl.float32), tl.zeros([M, padded_head_dim(HEAD_DIM)], tl.float32))


@triton.jit
def attend(
    first,
    last,
    softmax,
    queries,
    context,
    begins,
    limits,
    scale_log2,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Accumulate the tiles of BLOCK_N keys from `first` to before `last`.

    A row sees the tokens from `begins`, where there is a WINDOW, to before `limits`, each `[M, 1]` or one for
    all rows; MASKED is unnecessary if every row sees all tokens of these tiles.
    """
    peak, total, acc = softmax
    for index in range(first, last):
        scores = _scores(
            index, queries, context, begins, NUM_KV_HEADS, PAGE_SIZE, HEAD_DIM, BLOCK_N, WINDOW, MASKED
        )
        peak, total, acc = _tile_step(
            index,
            scores,
            Softmax(peak, total, acc),
            queries.dtype,
            context,
            begins,
            limits,
            scale_log2,
            NUM_KV_HEADS,
            PAGE_SIZE,
            HEAD_DIM,
            BLOCK_N,
            WINDOW,
            MASKED,
        )
    return Softmax(peak, total, acc)


@triton.jit
def attend_ahead(
    first,
    full,
    last,
    softmax,
    queries,
    context,
    begins,
    limits,
    scale_log2,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """`attend` from tile `first` to before `full` without a mask and from there to before `last` with one,
    the scores of the next tile being computed beside the softmax of this one.

    In `attend` the tensor cores wait for the exponentials. Here the next product is launched before them, at
    the price of registers for one more tile of scores.
    """
    peak, total, acc = softmax
    if first < last:
        scores = _scores(
            first, queries, context, begins, NUM_KV_HEADS, PAGE_SIZE, HEAD_DIM, BLOCK_N, WINDOW, False
        )
        edge = tl.minimum(full, last - 1)
        for masked in tl.static_range(2):
            for index in range(edge if masked else first, last - 1 if masked else edge):
                later = _scores(
                    index + 1,
                    queries,
                    context,
                    begins,
                    NUM_KV_HEADS,
                    PAGE_SIZE,
                    HEAD_DIM,
                    BLOCK_N,
                    WINDOW,
                    False,
                )
                peak, total, acc = _tile_step(
                    index,
                    scores,
                    Softmax(peak, total, acc),
                    queries.dtype,
                    context,
                    begins,
                    limits,
                    scale_log2,
                    NUM_KV_HEADS,
                    PAGE_SIZE,
                    HEAD_DIM,
                    BLOCK_N,
                    WINDOW,
                    MASKED=masked == 1,
                )
                scores = later
        peak, total, acc = _tile_step(
            last - 1,
            scores,
            Softmax(peak, total, acc),
            queries.dtype,
            context,
            begins,
            limits,
            scale_log2,
            NUM_KV_HEADS,
            PAGE_SIZE,
            HEAD_DIM,
            BLOCK_N,
            WINDOW,
            MASKED=True,
        )
    return Softmax(peak, total, acc)


@triton.jit
def _scores(
    index,
    queries,
    context,
    begins,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Scores `[M, N]` of a tile of keys. Those of tokens that no query sees are meaningless."""
    offsets, tokens = _gather(context, index * BLOCK_N, NUM_KV_HEADS, PAGE_SIZE, HEAD_DIM, BLOCK_N)
    keys = _load_tile(
        context.k + offsets, _read(tokens, context, begins, WINDOW), queries.dtype, HEAD_DIM, MASKED
    )
    return tl.dot(queries, tl.trans(keys), input_precision="ieee")


@triton.jit
def _tile_step(
    index,
    scores,
    softmax,
    dtype: tl.constexpr,
    context,
    begins,
    limits,
    scale_log2,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The running softmax with a tile whose scores are there; see `attend`."""
    offsets, tokens = _gather(context, index * BLOCK_N, NUM_KV_HEADS, PAGE_SIZE, HEAD_DIM, BLOCK_N)
    if MASKED:
        visible = tokens[None, :] < limits
        if WINDOW:
            visible = visible & (tokens[None, :] >= begins)
        scores = tl.where(visible, scores, float("-inf"))
    values = _load_tile(context.v + offsets, _read(tokens, context, begins, WINDOW), dtype, HEAD_DIM, MASKED)
    return _softmax_step(scores, softmax.peak, softmax.total, softmax.acc, values, scale_log2)


@triton.jit
def _read(tokens, context, begins, WINDOW: tl.constexpr):
    """Mask `[N]` of the tokens that a masked tile reads: where one beginning is that of all rows, none before
    it."""
    real = tokens < context.length
    if WINDOW and not begins.type.is_block():
        real = real & (tokens >= begins)
    return real


@triton.jit
def _gather(
    context,
    start,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    N: tl.constexpr,
):
    """Locations of the N tokens from `start` on in a head's cache: offsets `[N, D]`, and the tokens `[N]`.

    A single block-table entry serves a tile that lies within one page.
    """
    tokens = start + tl.arange(0, N)
    if PAGE_SIZE % N == 0:
        pages = tl.load(context.table + start // PAGE_SIZE)
    else:
        pages = tl.load(context.table + tokens // PAGE_SIZE, mask=tokens < context.length, other=0)
    rows = pages.to(tl.int64) * (NUM_KV_HEADS * PAGE_SIZE * HEAD_DIM) + (tokens % PAGE_SIZE) * HEAD_DIM
    return rows[:, None] + tl.arange(0, padded_head_dim(HEAD_DIM))[None, :], tokens


@triton.jit
def _load_tile(pointers, real, dtype: tl.constexpr, HEAD_DIM: tl.constexpr, MASKED: tl.constexpr):
    """Keys or values `[N, D]` in a dtype.

    In a masked tile, rows that are not real read nothing and are zero: the memory behind a sequence's end may
    belong to another sequence, or hold NaN, and what lies before a window would be read for nothing.
    """
    dims = tl.arange(0, padded_head_dim(HEAD_DIM))
    if padded_head_dim(HEAD_DIM) != HEAD_DIM:
        inside = (dims < HEAD_DIM)[None, :]
        tile = tl.load(pointers, mask=real[:, None] & inside if MASKED else inside, other=0.0)
    elif MASKED:
        tile = tl.load(pointers, mask=real[:, None], other=0.0)
    else:
        tile = tl.load(pointers)
    return tile.to(tl.float32) if F32 else tile.to(dtype)


@triton.jit
def _softmax_step(scores, peak, total, acc, values, scale_log2):
    """One tile of the running softmax: scores `[M, N]`, values `[N, D]`, peak and total `[M]`, acc `[M,
    D]`."""
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak) * scale_log2
    shrink = tl.exp2(peak * scale_log2 - base)
    weights = tl.exp2(scores * scale_log2 - base[:, None])
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
    return new_peak, total, acc


@triton.jit
def window_begin(position, WINDOW: tl.constexpr):
    """The first token that a query at this position sees."""
    return tl.maximum(position - WINDOW + 1, 0) if WINDOW else position * 0


@triton.jit
def with_sink(total, peak, sinks, heads, real, scale_log2, SINKS: tl.constexpr):
    """The total of rows whose heads have a score without a value; `sinks` are not scaled, `peak` is unscaled.

    The total may become infinite, the result then being zero, as it should: a share below 2^-127.
    """
    if SINKS:
        score = tl.load(sinks + heads, mask=real, other=float("-inf")).to(tl.float32) * _SCALE_OF_SINKS
        total = total + tl.exp2(score - peak * scale_log2)
    return total


@triton.jit
def load_queries(rows, real, HEAD_DIM: tl.constexpr):
    """Queries `[M, D]` from row pointers `[M]`; zeros for rows that are not real."""
    dims = tl.arange(0, padded_head_dim(HEAD_DIM))
    queries = tl.load(rows[:, None] + dims[None, :], mask=_inside(real, HEAD_DIM), other=0.0)
    return queries.to(tl.float32) if F32 else queries


@triton.jit
def store_result(rows, real, acc, total, HEAD_DIM: tl.constexpr):
    """Store the attention of M rows at row pointers `[M]`; zeros for a row without keys."""
    dims = tl.arange(0, padded_head_dim(HEAD_DIM))
    result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(rows[:, None] + dims[None, :], result.to(rows.dtype.element_ty), mask=_inside(real, HEAD_DIM))


@triton.jit
def store_zeros(rows, real, HEAD_DIM: tl.constexpr):
    """Zeros to pointers `[M]` to where rows begin."""
    places = rows[:, None] + tl.arange(0, padded_head_dim(HEAD_DIM))[None, :]
    zeros = tl.zeros(places.shape, rows.dtype.element_ty)
    tl.store(places, zeros, mask=_inside(real, HEAD_DIM))


@triton.jit
def store_part(partial_out, partial_stats, parts, real, softmax, HEAD_DIM: tl.constexpr):
    """Store the partial softmax of M rows at `parts` `[M]`, for a kernel that merges them."""
    dims = tl.arange(0, padded_head_dim(HEAD_DIM))
    places = partial_out + parts[:, None] * HEAD_DIM + dims[None, :]
    tl.store(places, softmax.acc, mask=_inside(real, HEAD_DIM))
    tl.store(partial_stats + parts * 2, softmax.peak, mask=real)
    tl.store(partial_stats + parts * 2 + 1, softmax.total, mask=real)


@triton.jit
def _inside(real, HEAD_DIM: tl.constexpr):
    """Mask `[M, D]` of existing elements, from the mask `[M]` of existing rows."""
    inside = real[:, None]
    if padded_head_dim(HEAD_DIM) != HEAD_DIM:
        inside = inside & (tl.arange(0, padded_head_dim(HEAD_DIM)) < HEAD_DIM)[None, :]
    return inside
