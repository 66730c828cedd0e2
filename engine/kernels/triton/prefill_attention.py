"""Paged attention of many query tokens per sequence: prefills, chunks over a cached prefix, diffusion blocks.

One code path for the causal and the block-causal mask: each query row sees the keys below its own limit, and
a tile of keys below every row's limit needs no mask at all. The query heads of one KV head are packed with
the query tokens into the rows of a tile (row = token * GROUP + head), so a diffusion block of 32 tokens at
GROUP 4 fills a 128-row tensor-core tile and its keys are read once.

The grid follows from the shapes alone: sequence `s` owns the tiles from
`query_start[s] * GROUP // BLOCK_M + s` on, which leaves each sequence at least as many as it needs; a program
finds its sequence by bisection. When that makes fewer programs than the GPU has room for, each tile's keys
are also split among several programs and a second kernel merges them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
import triton.language as tl

from engine.kernels.gpu import gpu_of
from engine.kernels.promise import Promise
from engine.kernels.triton.attention_tiles import (
    LOG2_E,
    load_tile,
    padded_head_dim,
    softmax_step,
    tile_offsets,
)
from engine.kernels.triton.autotune import INTERPRETED, autotuned

if TYPE_CHECKING:
    from engine.kernels.attention import AttentionMetadata

MAX_SPLITS = 16
MIN_SPLIT_TOKENS = 512

_VARYING = ["first_seq", "num_seqs", "num_tokens", "stride_table"]


@triton.jit
def _attend(
    first,
    last,
    peak,
    total,
    acc,
    queries,
    keys_of_head,
    values_of_head,
    table,
    seq_len,
    limits,
    scale_log2,
    stride_page,
    stride_slot,
    dims,
    BLOCK_N: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    F32: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Take in the key tiles from `first` to before `last`; unmasked ones are visible to every row."""
    for index in range(first, last):
        offsets, tokens, valid = tile_offsets(
            table, index * BLOCK_N, seq_len, dims, stride_page, stride_slot, PAGE_SIZE, BLOCK_N
        )
        keys = load_tile(keys_of_head + offsets, valid, dims, HEAD_DIM, MASKED, F32)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        if MASKED:
            scores = tl.where(tokens[None, :] < limits[:, None], scores, float("-inf"))
        values = load_tile(values_of_head + offsets, valid, dims, HEAD_DIM, MASKED, F32)
        peak, total, acc = softmax_step(scores, peak, total, acc, values, scale_log2)
    return peak, total, acc


@triton.jit
def _first_tile(begin, seq, first_seq, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """The first tile that sequence `seq` owns, whose query tokens begin at `begin`."""
    return (begin - first_seq) * GROUP // BLOCK_M + seq - first_seq


@triton.jit
def _owner(tile, query_start, first_seq, num_seqs, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """The sequence that owns a tile, by bisection."""
    low = first_seq
    high = first_seq + num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if _first_tile(tl.load(query_start + middle), middle, first_seq, GROUP, BLOCK_M) <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _limit(position, seq_len, MASK_BLOCK: tl.constexpr):
    """The first key that a query at this position does not see: the end of its mask block."""
    return tl.minimum((position // MASK_BLOCK + 1) * MASK_BLOCK, seq_len)


@triton.jit
def _key_tiles(seen_by_all, seen_by_any, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr):
    """Tiles of keys that this program takes in: from `start`, up to `full` without a mask, to `stop` with."""
    start = 0
    stop = tl.cdiv(seen_by_any, BLOCK_N)
    if SPLIT:
        share = tl.cdiv(stop, tl.num_programs(2))
        start = tl.program_id(2) * share
        stop = tl.minimum(start + share, stop)
    full = tl.maximum(tl.minimum(seen_by_all // BLOCK_N, stop), start)
    return start, full, stop


@triton.jit
def _store_part(
    partial_out,
    partial_stats,
    row,
    row_valid,
    row_mask,
    num_rows,
    peak,
    total,
    acc,
    dims,
    HEAD_DIM: tl.constexpr,
):
    """What this split of the keys says of its rows, `[splits, tokens, heads]`: for `_merge`."""
    part = tl.program_id(2).to(tl.int64) * num_rows + row
    tl.store(partial_out + part[:, None] * HEAD_DIM + dims[None, :], acc, mask=row_mask)
    tl.store(partial_stats + part * 2, peak, mask=row_valid)
    tl.store(partial_stats + part * 2 + 1, total, mask=row_valid)


@triton.jit(do_not_specialize=_VARYING)
def _prefill(
    out,
    q,
    k_cache,
    v_cache,
    query_start,
    seq_lens,
    block_tables,
    partial_out,
    partial_stats,
    scale_log2,
    first_seq,
    num_seqs,
    num_tokens,
    stride_table,
    stride_ot,
    stride_qt,
    stride_qh,
    stride_page,
    stride_head,
    stride_slot,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    MASK_BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_D: tl.constexpr,
    F32: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # The last tiles of a sequence see the most keys: start with those.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    seq = _owner(tile, query_start, first_seq, num_seqs, GROUP, BLOCK_M)
    begin = tl.load(query_start + seq)
    query_len = tl.load(query_start + seq + 1) - begin
    first_row = (tile - _first_tile(begin, seq, first_seq, GROUP, BLOCK_M)) * BLOCK_M

    if first_row < query_len * GROUP:
        seq_len = tl.load(seq_lens + seq)
        rows = first_row + tl.arange(0, BLOCK_M)
        dims = tl.arange(0, BLOCK_D)
        tokens = rows // GROUP
        heads = head * GROUP + rows % GROUP
        row_valid = tokens < query_len
        row_mask = row_valid[:, None]
        if BLOCK_D != HEAD_DIM:
            row_mask = row_mask & (dims < HEAD_DIM)[None, :]
        q_rows = q + (begin + tokens).to(tl.int64) * stride_qt + heads * stride_qh
        queries = tl.load(q_rows[:, None] + dims[None, :], mask=row_mask, other=0.0)
        if F32:
            queries = queries.to(tl.float32)

        # Keys that every row sees, and keys that any row sees: the limits of the first and the last row.
        position = seq_len - query_len
        limits = _limit(position + tokens, seq_len, MASK_BLOCK)
        first_token = first_row // GROUP
        last_token = tl.minimum((first_row + BLOCK_M - 1) // GROUP, query_len - 1)
        seen_by_all = _limit(position + first_token, seq_len, MASK_BLOCK)
        seen_by_any = _limit(position + last_token, seq_len, MASK_BLOCK)
        start, full, stop = _key_tiles(seen_by_all, seen_by_any, BLOCK_N, SPLIT)

        table = block_tables + seq.to(tl.int64) * stride_table
        keys_of_head = k_cache + head.to(tl.int64) * stride_head
        values_of_head = v_cache + head.to(tl.int64) * stride_head
        peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for phase in tl.static_range(2):
            peak, total, acc = _attend(
                start if phase == 0 else full,
                full if phase == 0 else stop,
                peak,
                total,
                acc,
                queries,
                keys_of_head,
                values_of_head,
                table,
                seq_len,
                limits,
                scale_log2,
                stride_page,
                stride_slot,
                dims,
                BLOCK_N,
                PAGE_SIZE,
                HEAD_DIM,
                F32,
                phase == 1,
            )

        if SPLIT:
            num_heads = tl.num_programs(1) * GROUP
            row = (begin - first_seq + tokens) * num_heads + heads
            num_rows = num_tokens * num_heads
            _store_part(
                partial_out,
                partial_stats,
                row,
                row_valid,
                row_mask,
                num_rows,
                peak,
                total,
                acc,
                dims,
                HEAD_DIM,
            )
        else:
            result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
            out_rows = out + (begin + tokens).to(tl.int64) * stride_ot + heads * HEAD_DIM
            tl.store(out_rows[:, None] + dims[None, :], result.to(out.dtype.element_ty), mask=row_mask)


@triton.jit(do_not_specialize=["first_row", "num_rows", "num_splits"])
def _merge(
    out,
    partial_out,
    partial_stats,
    scale_log2,
    first_row,
    num_rows,
    num_splits,
    HEAD_DIM: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Merge the splits of one row (a query token's head); zeros for a row that sees nothing."""
    row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, BLOCK_SPLITS)
    dims = tl.arange(0, BLOCK_D)
    part = splits * num_rows.to(tl.int64) + row
    peaks = tl.load(partial_stats + part * 2, mask=splits < num_splits, other=float("-inf"))
    totals = tl.load(partial_stats + part * 2 + 1, mask=splits < num_splits, other=0.0)
    mask = (splits < num_splits)[:, None] & (dims < HEAD_DIM)[None, :]
    parts = tl.load(partial_out + part[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
    peak = tl.max(peaks, 0)
    factors = tl.where(totals == 0.0, 0.0, tl.exp2((peaks - peak) * scale_log2))
    total = tl.sum(totals * factors, 0)
    result = tl.sum(parts * factors[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    target = out + (first_row + row) * HEAD_DIM + dims
    tl.store(target, result.to(out.dtype.element_ty), mask=dims < HEAD_DIM)


def _config(block_m: int, block_n: int, num_warps: int, num_stages: int) -> Any:
    return triton.Config({"BLOCK_M": block_m, "BLOCK_N": block_n}, num_warps=num_warps, num_stages=num_stages)


_KEY = ["GROUP", "HEAD_DIM", "PAGE_SIZE", "MASK_BLOCK", "SPLIT"]
# The pipeline also prefetches page numbers: 3 stages hold one tile of keys and values ahead, 5 hold two.
CONFIGS = {
    "wide": [_config(128, 64, 8, 5), _config(128, 64, 8, 3), _config(64, 64, 4, 3)],
    "narrow": [_config(64, 64, 4, 5)],
    "small": [_config(16, 64, 4, 5)],
    "wide d256": [_config(128, 32, 8, 3), _config(64, 64, 8, 3)],
    "narrow d256": [_config(64, 64, 8, 3)],
    "small d256": [_config(16, 32, 4, 5)],
}
KERNELS = {name: autotuned(configs, _KEY)(_prefill) for name, configs in CONFIGS.items()}


class Choice(NamedTuple):
    """What a launch chooses by the size of its batch."""

    shape: str
    """Key of `CONFIGS`."""
    splits: int
    """Among how many programs each tile's keys are divided, so that few tiles fill the GPU."""


def choose(
    *,
    tokens: int,
    num_seqs: int,
    max_query_len: int,
    max_seq_len: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    multiprocessors: int,
) -> Choice:
    """For so many new tokens of so many sequences; the other arguments are those of the launch."""
    group = num_heads // num_kv_heads
    rows, longest_rows = tokens * group, max_query_len * group
    width = "small" if longest_rows <= 16 else "narrow" if longest_rows <= 64 else "wide"
    shape = width if head_dim <= 128 else f"{width} d256"
    block_m = CONFIGS[shape][0].kwargs["BLOCK_M"]
    # Tiles that can have rows. The grid has more: it leaves each sequence room for one it may not need.
    busy = min(rows // block_m + num_seqs, num_seqs * -(-longest_rows // block_m))
    splits = min(multiprocessors // (busy * num_kv_heads), max_seq_len // MIN_SPLIT_TOKENS, MAX_SPLITS)
    return Choice(shape, max(1, splits))


def prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    meta: AttentionMetadata,
    scale: float,
    out: torch.Tensor,
    splits: int | None = None,
) -> None:
    """Attend the rows of `q` that follow the first `meta.num_decodes` and write the same rows of `out`.

    `splits` overrides among how many programs a tile's keys are divided.
    """
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, page_size = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    tokens = q.shape[0] - meta.num_decodes
    num_seqs = meta.num_seqs - meta.num_decodes
    choice = choose(
        tokens=tokens,
        num_seqs=num_seqs,
        max_query_len=meta.max_query_len,
        max_seq_len=meta.max_seq_len,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        multiprocessors=gpu_of(q.device).multiprocessors,
    )
    splits = choice.splits if splits is None else splits

    def tiles(block_m: int) -> int:
        return tokens * group // block_m + num_seqs

    parts = splits * tokens * num_heads if splits > 1 else 0
    partial_out = torch.empty((parts, head_dim), dtype=torch.float32, device=q.device)
    partial_stats = torch.empty((parts, 2), dtype=torch.float32, device=q.device)
    KERNELS[choice.shape][lambda config: (tiles(config["BLOCK_M"]), num_kv_heads, splits)](
        out,
        q,
        k_cache,
        v_cache,
        meta.query_start,
        meta.seq_lens,
        meta.block_tables,
        partial_out,
        partial_stats,
        scale * LOG2_E,
        meta.num_decodes,
        num_seqs,
        tokens,
        meta.block_tables.stride(0),
        out.stride(0),
        q.stride(0),
        q.stride(1),
        *k_cache.stride()[:3],
        GROUP=group,
        HEAD_DIM=head_dim,
        PAGE_SIZE=page_size,
        MASK_BLOCK=meta.mask_block,
        SPLIT=splits > 1,
        BLOCK_D=padded_head_dim(head_dim),
        F32=INTERPRETED,
    )
    if splits > 1:
        _merge[(tokens * num_heads,)](
            out,
            partial_out,
            partial_stats,
            scale * LOG2_E,
            meta.num_decodes * num_heads,
            tokens * num_heads,
            splits,
            HEAD_DIM=head_dim,
            BLOCK_SPLITS=MAX_SPLITS,
            BLOCK_D=padded_head_dim(head_dim),
            num_warps=1,
        )


def promise(kernel: str, constants: Mapping[str, Any]) -> Promise:
    """Tiles of 64 rows or more are multiplied by wgmma; see `engine.kernels.aot`."""
    if kernel == "_merge":
        return Promise(max_registers=128)
    return Promise(("HGMMA" if constants["BLOCK_M"] >= 64 else "HMMA", "LDGSTS"))
