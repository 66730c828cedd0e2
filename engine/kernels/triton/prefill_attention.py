"""Paged attention of many query tokens per sequence: prefills, chunks over a cached prefix, denoised blocks.

One code path for the causal and the block-causal mask: each query row sees the keys below its own limit, and
a tile of keys below every row's limit needs no mask at all. The query heads of one KV head are packed with
the query tokens into the rows of a tile (row = token * GROUP + head), so a denoised block of 32 tokens at
GROUP 4 fills a 128-row tensor-core tile and its keys are read once.

The grid follows from the shapes alone: sequence `s` owns the tiles from
`query_start[s] * GROUP // BLOCK_M + s` on, which leaves each sequence at least as many as it needs; a program
finds its sequence by bisection. If that yields fewer programs than the GPU can hold, each tile's keys are
also split among several programs and a second kernel merges them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
import triton.language as tl

from engine.kernels.fp8 import FP8
from engine.kernels.gpu import gpu_of
from engine.kernels.promise import Promise
from engine.kernels.triton.attention_tiles import (
    LOG2_E,
    attend,
    attend_ahead,
    context_of,
    empty_softmax,
    load_queries,
    padded_head_dim,
    store_part,
    store_result,
    window_begin,
    with_sink,
)
from engine.kernels.triton.autotune import autotuned

if TYPE_CHECKING:
    from engine.kernels.attention import AttentionMetadata

MAX_SPLITS = 16
MIN_SPLIT_TOKENS = 512

_VARYING = ["first_seq", "num_seqs", "stride_table"]


@triton.jit
def _first_tile(begin, seq, first_seq, base, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """The first tile of sequence `seq`, whose query tokens begin at `begin`, those of the first at `base`."""
    return (begin - base) * GROUP // BLOCK_M + seq - first_seq


@triton.jit
def _owner(tile, query_start, first_seq, base, num_seqs, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """The sequence that owns a tile, by bisection."""
    low = first_seq
    high = first_seq + num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if _first_tile(tl.load(query_start + middle), middle, first_seq, base, GROUP, BLOCK_M) <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _limit(position, seq_len, MASK_BLOCK: tl.constexpr):
    """The first key that a query at this position does not see: the end of its mask block."""
    return tl.minimum((position // MASK_BLOCK + 1) * MASK_BLOCK, seq_len)


@triton.jit
def _key_tiles(
    begin, visible_to_all, visible_to_any, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr
):
    """Key-tile bounds of this program: from `start`, up to `full` without a mask, to `stop` with one.

    `begin` is the first key that any row sees. Under a window there are no tiles without a mask: few of its
    tiles have neither edge in them.
    """
    start = begin // BLOCK_N
    stop = tl.cdiv(visible_to_any, BLOCK_N)
    if SPLIT:
        share = tl.cdiv(stop - start, tl.num_programs(2))
        start += tl.program_id(2) * share
        stop = tl.minimum(start + share, stop)
    full = start if WINDOW else tl.maximum(tl.minimum(visible_to_all // BLOCK_N, stop), start)
    return start, full, stop


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
    sinks,
    scale_log2,
    first_seq,
    num_seqs,
    stride_table,
    stride_q,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    MASK_BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """One tile of rows and one KV head, over all keys of its sequence or, with SPLIT, over a share.

    AHEAD: compute the scores of the next tile of keys beside the softmax of this one.
    """
    # The last tiles of a sequence see the most keys: start with those.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    base = tl.load(query_start + first_seq)
    seq = _owner(tile, query_start, first_seq, base, num_seqs, GROUP, BLOCK_M)
    begin = tl.load(query_start + seq)
    query_len = tl.load(query_start + seq + 1) - begin
    first_row = (tile - _first_tile(begin, seq, first_seq, base, GROUP, BLOCK_M)) * BLOCK_M

    if first_row < query_len * GROUP:
        seq_len = tl.load(seq_lens + seq)
        rows = first_row + tl.arange(0, BLOCK_M)
        tokens = rows // GROUP
        heads = head * GROUP + rows % GROUP
        real = tokens < query_len
        queries = load_queries(
            q + (begin + tokens).to(tl.int64) * stride_q + heads * HEAD_DIM, real, HEAD_DIM
        )

        # Keys that every row sees, and keys that any row sees: the limits of the first and the last row.
        position = seq_len - query_len
        last_token = tl.minimum((first_row + BLOCK_M - 1) // GROUP, query_len - 1)
        visible_to_all = _limit(position + first_row // GROUP, seq_len, MASK_BLOCK)
        visible_to_any = _limit(position + last_token, seq_len, MASK_BLOCK)
        first_visible = window_begin(position + first_row // GROUP, WINDOW)
        start, full, stop = _key_tiles(first_visible, visible_to_all, visible_to_any, BLOCK_N, WINDOW, SPLIT)
        begins = window_begin(position + tokens, WINDOW)[:, None]
        limits = _limit(position + tokens, seq_len, MASK_BLOCK)[:, None]

        context = context_of(
            seq, head, k_cache, v_cache, block_tables, stride_table, seq_len, PAGE_SIZE, HEAD_DIM
        )
        softmax = empty_softmax(BLOCK_M, HEAD_DIM)
        if AHEAD:
            softmax = attend_ahead(
                start,
                full,
                stop,
                softmax,
                queries,
                context,
                begins,
                limits,
                scale_log2,
                NUM_KV_HEADS,
                PAGE_SIZE,
                HEAD_DIM,
                BLOCK_N,
                WINDOW,
            )
        else:
            for masked in tl.static_range(2):
                softmax = attend(
                    full if masked else start,
                    stop if masked else full,
                    softmax,
                    queries,
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

        num_heads = NUM_KV_HEADS * GROUP
        if SPLIT:
            row = (begin - base + tokens).to(tl.int64) * num_heads + heads
            parts = row * tl.num_programs(2) + tl.program_id(2)
            store_part(partial_out, partial_stats, parts, real, softmax, HEAD_DIM)
        else:
            row = (begin + tokens).to(tl.int64) * num_heads + heads
            total = with_sink(softmax.total, softmax.peak, sinks, heads, real, scale_log2, SINKS)
            store_result(out + row * HEAD_DIM, real, softmax.acc, total, HEAD_DIM)


@triton.jit(do_not_specialize=["first_seq", "num_seqs", "num_splits"])
def _merge(
    out,
    query_start,
    partial_out,
    partial_stats,
    sinks,
    scale_log2,
    first_seq,
    num_seqs,
    num_splits,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SINKS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    """Merge the splits of one row (a query token's head), if there is one; zeros if it sees nothing."""
    row = tl.program_id(0).to(tl.int64)
    base = tl.load(query_start + first_seq)
    rows = (tl.load(query_start + first_seq + num_seqs) - base) * NUM_HEADS
    if row >= rows:
        return
    splits = tl.arange(0, MAX_SPLITS)
    dims = tl.arange(0, padded_head_dim(HEAD_DIM))
    real = splits < num_splits
    parts = row * num_splits + splits
    peaks = tl.load(partial_stats + parts * 2, mask=real, other=float("-inf"))
    totals = tl.load(partial_stats + parts * 2 + 1, mask=real, other=0.0)
    mask = real[:, None] & (dims < HEAD_DIM)[None, :]
    accs = tl.load(partial_out + parts[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
    peak = tl.max(peaks, 0)
    factors = tl.where(totals == 0.0, 0.0, tl.exp2((peaks - peak) * scale_log2))
    total = tl.sum(totals * factors, 0)
    total = with_sink(total, peak, sinks, tl.program_id(0) % NUM_HEADS, row >= 0, scale_log2, SINKS)
    result = tl.sum(accs * factors[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    target = out + (base.to(tl.int64) * NUM_HEADS + row) * HEAD_DIM + dims
    tl.store(target, result.to(out.dtype.element_ty), mask=dims < HEAD_DIM)


def _config(block_m: int, block_n: int, num_warps: int, num_stages: int, ahead: bool = False) -> Any:
    sizes = {"BLOCK_M": block_m, "BLOCK_N": block_n, "AHEAD": ahead}
    return triton.Config(sizes, num_warps=num_warps, num_stages=num_stages)


_KEY = ["GROUP", "HEAD_DIM", "PAGE_SIZE", "MASK_BLOCK", "WINDOW", "SINKS", "SPLIT"]
# The pipeline also prefetches page numbers: 3 stages hold one tile of keys and values ahead, 5 hold two.
CONFIGS = {
    "wide": [_config(128, 64, 8, 3, ahead=True), _config(128, 64, 8, 5), _config(64, 64, 4, 3)],
    "narrow": [_config(64, 64, 4, 5)],
    "small": [_config(16, 64, 4, 5)],
    "narrow float8": [_config(64, 32, 4, 5)],
    "small float8": [_config(16, 16, 4, 5)],
    "wide d256": [_config(128, 32, 8, 3), _config(64, 64, 8, 3)],
    "narrow d256": [_config(64, 64, 8, 3)],
    "small d256": [_config(16, 32, 4, 5)],
    "wide d256 float8": [_config(128, 16, 8, 3), _config(64, 32, 8, 3)],
    "narrow d256 float8": [_config(64, 32, 8, 3)],
}
_OF_FLOAT8 = {
    "small": "small d256",
    "wide d256": "wide d256 float8",
    "narrow d256": "narrow d256 float8",
}
"""Tiles of fewer keys for a cache in float8, which is converted in registers."""


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def fits(config: Any, launch: Mapping[str, Any]) -> bool:
    """Predicate: whether a configuration's tiles fit into registers (255 a thread on sm_90).

    A cache in float8 passes through registers on its way to the tensor cores. With the next tile of scores
    beside it, bfloat16 queries spill up to 12 of them, and nothing would be gained: the products wait for
    the conversion. In 64 rows over 4 warps, a share of the keys and a group that is no power of two, whose
    heads and tokens take divisions, up to 32 are spilled.
    """
    if launch["k_cache"].dtype != FP8:
        return True
    crowded = launch["SPLIT"] and not _is_power_of_two(launch["GROUP"])
    return not config.kwargs["AHEAD"] and not (crowded and config.num_warps == 4)


KERNELS = {name: autotuned(configs, _KEY, fits)(_prefill) for name, configs in CONFIGS.items()}


def with_few_keys(
    shape: str,
    *,
    group: int,
    head_dim: int,
    window: int,
    split: bool,
    query_dtype: torch.dtype,
    cache_dtype: torch.dtype,
) -> str:
    """The key of `CONFIGS` for these operands: that of the shape, or of as many rows and fewer keys.

    Fewer keys where more of them spill on sm_90: over a float8 cache; 64 rows for the reason in `fits`; 16
    rows where the compiler settles for 128 registers a thread, with which four blocks fit. Masks on every
    tile, of a window or of a padded head dimension, then spill 2 to 8 of them at 64 keys, and float16
    queries over a part of a float8 cache 2 to 6 at 32. With heads of 64 or less, none spills.
    """
    if cache_dtype == FP8:
        if shape == "narrow" and split and not _is_power_of_two(group):
            return "narrow float8"
        if shape == "small" and split and query_dtype == torch.float16 and head_dim > 64:
            return "small float8"
        return _OF_FLOAT8.get(shape, shape)
    masked = window > 0 or not _is_power_of_two(head_dim)
    return "small d256" if shape == "small" and masked and head_dim > 64 else shape


class TileChoice(NamedTuple):
    """Launch choices that depend on the batch size."""

    shape: str
    """Key of `CONFIGS`."""
    splits: int
    """Number of programs among which each tile's keys are divided, so that few tiles fill the GPU."""


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
) -> TileChoice:
    """The choice for this many new tokens and sequences; the other arguments are those of the launch."""
    group = num_heads // num_kv_heads
    rows, longest_rows = tokens * group, max_query_len * group
    width = "small" if longest_rows <= 16 else "narrow" if longest_rows <= 64 else "wide"
    shape = width if head_dim <= 128 else f"{width} d256"
    block_m = CONFIGS[shape][0].kwargs["BLOCK_M"]
    # Tiles that can have rows. The grid has more: it reserves for each sequence one it may not need.
    busy = min(rows // block_m + num_seqs, num_seqs * -(-longest_rows // block_m))
    splits = min(multiprocessors // (busy * num_kv_heads), max_seq_len // MIN_SPLIT_TOKENS, MAX_SPLITS)
    return TileChoice(shape, max(1, splits))


def prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    meta: AttentionMetadata,
    scale: float,
    out: torch.Tensor,
    splits: int | None = None,
    window: int = 0,
    sinks: torch.Tensor | None = None,
) -> None:
    """Attend the rows of `q` `[T, H, D]` after the first `meta.num_decodes` and write the same rows of `out`.

    `splits` overrides the number of programs among which a tile's keys are divided.
    """
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, page_size = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    num_seqs, usual = meta.num_seqs - meta.num_decodes, meta.usual_prompts
    tokens = q.shape[0] - (meta.num_decodes if usual is None else 0)  # any of the decodes may be none
    choice = choose(
        tokens=tokens,
        num_seqs=num_seqs if usual is None else min(num_seqs, usual),
        max_query_len=meta.max_query_len,
        max_seq_len=min(meta.max_seq_len, window + meta.max_query_len) if window else meta.max_seq_len,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        multiprocessors=gpu_of(q.device).multiprocessors,
    )
    splits = choice.splits if splits is None else splits
    shape = with_few_keys(
        choice.shape,
        group=group,
        head_dim=head_dim,
        window=window,
        split=splits > 1,
        query_dtype=q.dtype,
        cache_dtype=k_cache.dtype,
    )

    def tiles(block_m: int) -> int:
        return tokens * group // block_m + num_seqs

    parts = splits * tokens * num_heads if splits > 1 else 0
    partial_out = torch.empty((parts, head_dim), dtype=torch.float32, device=q.device)
    partial_stats = torch.empty((parts, 2), dtype=torch.float32, device=q.device)
    KERNELS[shape][lambda config: (tiles(config["BLOCK_M"]), num_kv_heads, splits)](
        out,
        q,
        k_cache,
        v_cache,
        meta.query_start,
        meta.seq_lens,
        meta.block_tables,
        partial_out,
        partial_stats,
        sinks,
        scale * LOG2_E,
        meta.num_decodes,
        num_seqs,
        meta.block_tables.stride(0),
        q.stride(0),
        GROUP=group,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        PAGE_SIZE=page_size,
        MASK_BLOCK=meta.mask_block,
        WINDOW=window,
        SINKS=sinks is not None,
        SPLIT=splits > 1,
    )
    if splits > 1:
        _merge[(tokens * num_heads,)](
            out,
            meta.query_start,
            partial_out,
            partial_stats,
            sinks,
            scale * LOG2_E,
            meta.num_decodes,
            num_seqs,
            splits,
            NUM_HEADS=num_heads,
            HEAD_DIM=head_dim,
            SINKS=sinks is not None,
            MAX_SPLITS=MAX_SPLITS,
            num_warps=1,
        )


def promise(kernel: str, constants: Mapping[str, Any]) -> Promise:
    """Tiles of 64 rows or more are multiplied by wgmma; see `engine.kernels.aot`."""
    if kernel == "_merge":
        return Promise(max_registers=128)
    return Promise(("HGMMA" if constants["BLOCK_M"] >= 64 else "HMMA", "LDGSTS"))
