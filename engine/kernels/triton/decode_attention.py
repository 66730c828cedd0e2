"""Paged attention of one query token per sequence, bound by the memory bandwidth of keys and values.

The work of a batch is one line of tiles: for each sequence, for each of its KV heads, its tiles of BLOCK_N
tokens. A fixed number of programs, as many as the GPU holds at once, take equal shares of that line whatever
the lengths, so one long sequence among short ones delays no other, and the launch does not depend on tensor
values (CUDA graphs). A program's share may begin and end inside a (sequence, head); such partial softmaxes go
to a small workspace and a second kernel merges them. The query heads of a KV head are the rows of one
tensor-core tile, so keys and values are read once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from engine.kernels.gpu import gpu_of
from engine.kernels.promise import Promise
from engine.kernels.triton.attention_tiles import (
    LOG2_E,
    attend,
    context_of,
    empty_softmax,
    load_queries,
    padded_head_dim,
    store_part,
    store_result,
    store_zeros,
    window_begin,
    with_sink,
)
from engine.kernels.triton.dependent import await_memory, launch_options

if TYPE_CHECKING:
    from engine.kernels.attention import AttentionMetadata

PROGRAMS_PER_SM = 2
NUM_WARPS = 4
NUM_STAGES = 5  # two tiles of keys and values ahead, and the page numbers of the tiles after them
MERGE_WARPS = PLAN_WARPS = 4

PLAN_WIDTH = tl.constexpr(8)
_VARYING = ["num_seqs", "stride_table"]
_PLAN_VARYING = ["num_seqs"]


@triton.constexpr_function
def block_m(group: int) -> int:
    """Rows per tile: the query heads of a KV head, at least the tensor cores' minimum."""
    return max(16, triton.next_power_of_2(group))


@triton.constexpr_function
def block_n(head_dim: int) -> int:
    """Tokens per tile: 16 KiB of bf16 keys, so that an SM holds the prefetched tiles of three programs."""
    return min(128, 8192 // padded_head_dim(head_dim))


@triton.jit
def _first_tile(length, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """The first tile of a sequence that its query sees."""
    return window_begin(length - 1, WINDOW) // BLOCK_N


@triton.jit(do_not_specialize=_PLAN_VARYING)
def _plan(
    plan,
    seq_lens,
    num_seqs,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """The share of one program: see `plan_decodes`."""
    BLOCK_N: tl.constexpr = block_n(HEAD_DIM)
    sequences = tl.arange(0, BLOCK_S)
    lengths = tl.load(seq_lens + sequences, mask=sequences < num_seqs, other=0)
    tiles = tl.cdiv(lengths, BLOCK_N) - _first_tile(lengths, WINDOW, BLOCK_N)
    ends = tl.cumsum(tiles * NUM_KV_HEADS, 0)
    line = tl.max(ends, 0)
    share = tl.cdiv(line, tl.num_programs(0))
    begin = tl.minimum(tl.program_id(0) * share, line)
    stop = tl.minimum(begin + share, line)

    before_first, before_last = ends <= begin, ends < stop
    row = plan + tl.program_id(0) * PLAN_WIDTH
    tl.store(row, begin)
    tl.store(row + 1, stop)
    tl.store(row + 2, tl.sum(before_first.to(tl.int32), 0))
    tl.store(row + 3, tl.max(tl.where(before_first, ends, 0), 0))
    tl.store(row + 4, tl.sum(before_last.to(tl.int32), 0))
    tl.store(row + 5, tl.max(tl.where(before_last, ends, 0), 0))
    tl.store(row + 6, line)
    tl.store(row + 7, share)


@triton.jit(do_not_specialize=_VARYING)
def _decode(
    out,
    q,
    k_cache,
    v_cache,
    block_tables,
    seq_lens,
    plan,
    partial_out,
    partial_stats,
    sinks,
    scale_log2,
    num_seqs,
    stride_table,
    stride_q,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """An equal share of the line of tiles, and zeros for some of the sequences without tokens."""
    await_memory(DEPENDENT)
    BLOCK_M: tl.constexpr = block_m(GROUP)
    BLOCK_N: tl.constexpr = block_n(HEAD_DIM)
    rows = tl.arange(0, BLOCK_M)
    real = rows < GROUP

    own = plan + tl.program_id(0) * PLAN_WIDTH
    tile = tl.load(own)
    stop = tl.load(own + 1)
    sequence = tl.load(own + 2)
    origin = tl.load(own + 3)

    for padded in range(tl.program_id(0), num_seqs, tl.num_programs(0)):
        if tl.load(seq_lens + padded) == 0:
            for any_head in range(NUM_KV_HEADS):
                empty = (padded * NUM_KV_HEADS + any_head) * GROUP + rows
                store_zeros(out + empty * HEAD_DIM, real, HEAD_DIM)

    while tile < stop:
        seq_len = tl.load(seq_lens + sequence)
        first_visible = _first_tile(seq_len, WINDOW, BLOCK_N)
        tiles = tl.cdiv(seq_len, BLOCK_N) - first_visible
        inside = tile - origin
        if inside < tiles * NUM_KV_HEADS:
            head = inside // tiles
            first = inside % tiles
            count = tl.minimum(tiles - first, stop - tile)

            heads = head * GROUP + rows
            queries = load_queries(q + sequence.to(tl.int64) * stride_q + heads * HEAD_DIM, real, HEAD_DIM)
            context = context_of(
                sequence, head, k_cache, v_cache, block_tables, stride_table, seq_len, PAGE_SIZE, HEAD_DIM
            )
            softmax = attend(
                first_visible + first,
                first_visible + first + count,
                empty_softmax(BLOCK_M, HEAD_DIM),
                queries,
                context,
                window_begin(seq_len - 1, WINDOW),
                seq_len,
                scale_log2,
                NUM_KV_HEADS,
                PAGE_SIZE,
                HEAD_DIM,
                BLOCK_N,
                WINDOW,
                MASKED=True,
            )

            if count == tiles:
                row = sequence.to(tl.int64) * (NUM_KV_HEADS * GROUP) + heads
                total = with_sink(softmax.total, softmax.peak, sinks, heads, real, scale_log2, SINKS)
                store_result(out + row * HEAD_DIM, real, softmax.acc, total, HEAD_DIM)
            else:
                parts = (tl.program_id(0) * 2 + (first == 0)) * GROUP + rows
                store_part(partial_out, partial_stats, parts, real, softmax, HEAD_DIM)
            tile += count
        else:
            sequence += 1
            origin += tiles * NUM_KV_HEADS


@triton.jit
def _merge(
    out,
    seq_lens,
    plan,
    partial_out,
    partial_stats,
    sinks,
    scale_log2,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Merge one query head of the (sequence, head) that begins in the share of a program of `_decode`.

    That program keeps its part in slot 1, those that go on with it in slot 0: a program can have at most one
    of each, as only the last (sequence, head) of a share can go on behind it. So there are as many merges as
    programs, however many sequences there are.
    """
    await_memory(DEPENDENT)
    BLOCK_N: tl.constexpr = block_n(HEAD_DIM)
    program = tl.program_id(0)
    row = tl.program_id(1)
    dims = tl.arange(0, padded_head_dim(HEAD_DIM))
    dim_mask = dims < HEAD_DIM

    own = plan + program * PLAN_WIDTH
    begin = tl.load(own)
    stop = tl.load(own + 1)
    if (begin < stop) & (stop < tl.load(own + 6)):
        sequence = tl.load(own + 4)
        origin = tl.load(own + 5)
        share = tl.load(own + 7)
        seq_len = tl.load(seq_lens + sequence)
        tiles = tl.cdiv(seq_len, BLOCK_N) - _first_tile(seq_len, WINDOW, BLOCK_N)
        head = (stop - 1 - origin) // tiles
        start = origin + head * tiles
        last_program = (start + tiles - 1) // share
        if (start >= begin) & (last_program > program):
            peak = tl.full([1], float("-inf"), tl.float32)
            total = tl.zeros([1], tl.float32)
            acc = tl.zeros(dims.shape, tl.float32)
            for block in range(program, last_program + 1, BLOCK_P):
                other = block + tl.arange(0, BLOCK_P)
                real = other <= last_program
                part = (other * 2 + (other == program)) * GROUP + row
                peaks = tl.load(partial_stats + part * 2, mask=real, other=float("-inf"))
                totals = tl.load(partial_stats + part * 2 + 1, mask=real, other=0.0)
                parts = tl.load(
                    partial_out + part[:, None] * HEAD_DIM + dims[None, :],
                    mask=real[:, None] & dim_mask[None, :],
                    other=0.0,
                )
                new_peak = tl.maximum(peak, tl.max(peaks, 0))
                shrink = tl.exp2((peak - new_peak) * scale_log2)
                factors = tl.exp2((peaks - new_peak) * scale_log2)
                total = total * shrink + tl.sum(totals * factors, 0)
                acc = acc * shrink + tl.sum(parts * factors[:, None], 0)
                peak = new_peak
            own_head = head * GROUP + row
            total = with_sink(total, peak, sinks, own_head, row < GROUP, scale_log2, SINKS)
            query_head = sequence.to(tl.int64) * (NUM_KV_HEADS * GROUP) + own_head
            result = (acc / total).to(out.dtype.element_ty)
            tl.store(out + query_head * HEAD_DIM + dims, result, mask=dim_mask)


def plan_decodes(
    seq_lens: torch.Tensor, num_decodes: int, num_kv_heads: int, head_dim: int, window: int = 0
) -> torch.Tensor:
    """Division of the line of tiles of the first `num_decodes` sequences among programs of `_decode`, the
    same for every layer with this sliding window.

    Returns:
        `[programs, 8]` int32, of each program: the first tile of its share and the one behind its last; the
        sequence of its first tile, and where that begins in the line; the same of its last tile; tiles in
        all, and tiles of a share.
    """
    programs = PROGRAMS_PER_SM * gpu_of(seq_lens.device).multiprocessors
    plan = torch.empty((programs, PLAN_WIDTH.value), dtype=torch.int32, device=seq_lens.device)
    _plan[(programs,)](
        plan,
        seq_lens,
        num_decodes,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        WINDOW=window,
        BLOCK_S=block_s(num_decodes),
        num_warps=PLAN_WARPS,
    )
    return plan


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    meta: AttentionMetadata,
    scale: float,
    out: torch.Tensor,
    window: int = 0,
    sinks: torch.Tensor | None = None,
) -> None:
    """Attend the first `meta.num_decodes` rows of `q` `[T, H, D]` and write the same rows of `out`.

    See `engine.kernels.attention.paged_attention`.
    """
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, page_size = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    plan = meta.decode_plans.get(window)
    if plan is None:
        plan = plan_decodes(meta.seq_lens, meta.num_decodes, num_kv_heads, head_dim, window)
    programs = len(plan)
    partial_out = torch.empty((programs, 2, group, head_dim), dtype=torch.float32, device=q.device)
    partial_stats = torch.empty((programs, 2, group, 2), dtype=torch.float32, device=q.device)
    line = {"NUM_KV_HEADS": num_kv_heads, "GROUP": group, "HEAD_DIM": head_dim, "WINDOW": window}
    line["SINKS"] = sinks is not None
    _decode[(programs,)](
        out,
        q,
        k_cache,
        v_cache,
        meta.block_tables,
        meta.seq_lens,
        plan,
        partial_out,
        partial_stats,
        sinks,
        scale * LOG2_E,
        meta.num_decodes,
        meta.block_tables.stride(0),
        q.stride(0),
        PAGE_SIZE=page_size,
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
        **line,
        **launch_options(),
    )
    _merge[(programs, group)](
        out,
        meta.seq_lens,
        plan,
        partial_out,
        partial_stats,
        sinks,
        scale * LOG2_E,
        BLOCK_P=16,
        num_warps=MERGE_WARPS,
        **line,
        **launch_options(),
    )


def block_s(num_seqs: int) -> int:
    """Padded number of batch lengths, in few sizes, so that batches of all sizes share few compilations."""
    return 64 if num_seqs <= 64 else max(512, triton.next_power_of_2(num_seqs))


def promise(kernel: str, constants: Mapping[str, Any]) -> Promise:
    """See `engine.kernels.aot`."""
    return Promise(("HMMA", "LDGSTS")) if kernel == "_decode" else Promise(max_registers=64)
