"""Paged attention: the layout of a batch, and the attention function.

In torch, all decodes of a batch, or all of its blocks to be denoised, are attended in one call, padded to the
longest context; every other prefill has a call of its own. So the time of a step follows from its features: a
call per prefill, and sequences times longest context. What depends on the batch alone (indices, masks) is
derived once and reused by every layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.op import op

Ints = np.ndarray[Any, np.dtype[Any]]
_KEYS_AT_ONCE = 16
"""Granularity of the number of keys; other numbers take a CPU's attention up to twice the time."""


@dataclass(frozen=True, eq=False)
class AttentionMetadata:
    """Metadata of one batch of S sequences whose new tokens are consecutive query rows.

    Query token `i` of sequence `s` sits at absolute position `seq_lens[s] - query_len[s] + i`, where
    `query_len[s] = query_start[s + 1] - query_start[s]`. It sees key `k` if and only if
    `k // mask_block <= position // mask_block`, `k < seq_lens[s]` and, in a layer with a sliding window,
    `k > position - window`.

    Args:
        query_start: `[S + 1]` int32, first query row of each sequence; the last entry is the number of rows.
        seq_lens: `[S]` int32, tokens in the KV cache including the new ones. 0 marks a padded row, whose
            output is zero.
        block_tables: `[S, max_pages]` int32, pages of each sequence in order. Entries past a sequence's
            last page are never followed.
        max_query_len: at least the longest `query_len`.
        max_seq_len: at least the longest `seq_lens`.
        num_decodes: how many of the first sequences have exactly one query token, or none, the last of them;
            the rest are prefills, chunks or blocks to be denoised.
        mask_block: 1 is causal, 32 is block-causal over blocks of 32.
        usual_prompts: how many of the rest a launch is sized for, where this describes any batch of the same
            size, of which fewer may be decodes; None = a batch in which the rest and their rows are these.
        decode_plans: how the decode kernel divides its work, by sliding window (0 = none), made once for all
            layers with that window; where one is missing, every call makes its own.

    The two maxima size a launch and the tensors determine its work, so that a CUDA graph captured with this
    object serves any batch copied into its tensors. The CPU path instead caches data derived from the tensors
    in `plans`: make a new object for each batch there.
    """

    query_start: Tensor
    seq_lens: Tensor
    block_tables: Tensor
    max_query_len: int
    max_seq_len: int
    num_decodes: int
    mask_block: int = 1
    usual_prompts: int | None = None
    decode_plans: Mapping[int, Tensor] = field(default_factory=dict)
    plans: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def num_seqs(self) -> int:
        return self.seq_lens.shape[0]


@dataclass(frozen=True)
class PrefillGroup:
    """Sequences attended in one call: `B` of them, `L` query tokens each, `N` key tokens (whole pages).

    Args:
        rows: `[B * L]` query rows, or a slice where they lie together.
        tiles: `[B * Hk * P]` indices into the cache seen as `[pages * Hk, page_size, D]`.
        hidden: indices into the gathered `[B * Hk * N]` tokens of those that are not the sequence's.
        causal: every token of each sequence is new, the mask is causal and cuts no more: none to hold.
        bias: `[B, 1, G * L or 1, N]`, 0 where a query may attend and -inf elsewhere; None if all attend to
        all.
        blind: `[B, L]` true at queries that attend to nothing; None if there are none.
    """

    batch: int
    query_len: int
    rows: Tensor | slice
    tiles: Tensor
    hidden: Tensor | None
    causal: bool
    bias: Tensor | None
    blind: Tensor | None


def _check(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    meta: AttentionMetadata,
    scale: float,
    window: int = 0,
    sinks: Tensor | None = None,
) -> None:
    if k_cache.shape != v_cache.shape:
        raise ValueError(f"k_cache and v_cache differ: {k_cache.shape} and {v_cache.shape}")
    if q.shape[2] != k_cache.shape[3] or q.shape[1] % k_cache.shape[1]:
        raise ValueError(f"queries {tuple(q.shape)} do not fit a cache of {tuple(k_cache.shape)}")
    if not k_cache.is_contiguous() or not v_cache.is_contiguous():
        raise ValueError("the KV cache must be contiguous")
    if q.stride(2) != 1 or (q.shape[1] > 1 and q.stride(1) != q.shape[2]):
        raise ValueError("the heads of a query token must be contiguous")
    if meta.num_decodes > min(meta.num_seqs, q.shape[0]):
        raise ValueError(f"{meta.num_decodes} decodes in {meta.num_seqs} sequences of {q.shape[0]} tokens")
    if window < 0 or (window and meta.mask_block > 1):
        raise ValueError(f"a window of {window} tokens under a mask of blocks of {meta.mask_block}")
    if sinks is not None and sinks.shape != q.shape[1:2]:
        raise ValueError(f"sinks {tuple(sinks.shape)} for {q.shape[1]} heads")


@op("triton", check=_check)
def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    meta: AttentionMetadata,
    scale: float,
    window: int = 0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Softmax attention of each query over its sequence's paged keys and values.

    Args:
        q: `[T, H, D]`, the last dimension contiguous; every row belongs to a sequence of `meta`.
        k_cache, v_cache: `[num_pages, Hk, page_size, D]` of equal strides, the last dimension contiguous, in
            the dtype of `q` or in float8; query head `h` attends KV head `h // (H // Hk)`. The new tokens are
            already stored.
        scale: multiplies the scores; positive.
        window: keys that a query sees at most, its own the last of them; 0 = all before it.
        sinks: `[H]`, a score per head that takes its share of the softmax and has no value (gpt-oss).

    Returns:
        `[T, H, D]` in the dtype of `q`.

    Raises:
        ValueError: inconsistent shapes or strides.
    """
    if q.shape[0] == 0 or meta.num_seqs == 0:
        return torch.zeros_like(q)
    key = (tuple(k_cache.shape[1:3]), q.shape[1], q.dtype, window, sinks is None)
    groups = meta.plans.get(key)
    if groups is None:
        groups = meta.plans[key] = plan(meta, k_cache, q, window, sinks is not None)
    if len(groups) == 1 and groups[0].batch * groups[0].query_len == q.shape[0]:
        return _attend(q, k_cache, v_cache, groups[0], scale, sinks)
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    for group in groups:
        out[group.rows] = _attend(q[group.rows], k_cache, v_cache, group, scale, sinks)
    return out


def _attend(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, group: PrefillGroup, scale: float, sinks: Tensor | None
) -> Tensor:
    """Attend `[B * L, H, D]`: the query heads of a KV head become rows beside its query tokens."""
    tokens, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[1]
    keys = _gather(k_cache, group, q.dtype)
    values = _gather(v_cache, group, q.dtype)
    if group.causal:
        queries = q.view(group.batch, group.query_len, num_heads, head_dim).transpose(1, 2)
        # Up to a round number: the causal mask hides the keys that do not exist.
        length = -(-group.query_len // _KEYS_AT_ONCE) * _KEYS_AT_ONCE
        keys, values = keys[:, :, :length], values[:, :, :length]
        out = F.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=scale, enable_gqa=True
        )
        return out.transpose(1, 2).reshape(q.shape)
    heads_per_kv = num_heads // num_kv_heads
    by_token = q.reshape(group.batch, group.query_len, num_kv_heads, heads_per_kv, head_dim)
    queries = by_token.permute(0, 2, 3, 1, 4)
    packed = queries.reshape(group.batch, num_kv_heads, heads_per_kv * group.query_len, head_dim)
    bias = group.bias
    if sinks is not None:
        keys, values, bias = _with_sinks(packed, keys, values, bias, sinks)
    out = F.scaled_dot_product_attention(packed, keys, values, bias, scale=scale)
    out = out.view(queries.shape).permute(0, 3, 1, 2, 4).reshape(q.shape)
    if group.blind is not None:
        out.masked_fill_(group.blind.reshape(tokens, 1, 1), 0.0)
    return out


def _with_sinks(
    packed: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, sinks: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One more key and value, both zero, to which the mask gives the score of each row's head.

    packed: `[B, Hk, G * L, D]`; keys, values: `[B, Hk, N, D]`, which become `N + 1`; bias: as in
    `PrefillGroup`, which becomes `[B, Hk, G * L, N + 1]`; sinks: `[Hk * G]`.
    """
    batch, num_kv_heads, rows, _ = packed.shape
    by_head = sinks.to(packed.dtype).view(num_kv_heads, -1, 1)
    column = by_head.expand(-1, -1, rows // by_head.shape[1]).reshape(1, num_kv_heads, rows, 1)
    logits = packed.new_zeros(()) if bias is None else bias
    logits = logits.expand(batch, num_kv_heads, rows, keys.shape[2])
    bias = torch.cat((logits, column.expand(batch, -1, -1, -1)), dim=3)
    return F.pad(keys, (0, 0, 0, 1)), F.pad(values, (0, 0, 0, 1)), bias


def _gather(cache: Tensor, group: PrefillGroup, dtype: torch.dtype) -> Tensor:
    """`[B, Hk, N, D]`: the pages of each sequence in order, zero in positions that are not its own."""
    _, num_kv_heads, page_size, head_dim = cache.shape
    pages = cache.reshape(-1, page_size, head_dim)
    if cache.dtype == dtype:
        gathered = pages.index_select(0, group.tiles)
    else:
        gathered = pages.view(torch.uint8).index_select(0, group.tiles).view(cache.dtype).to(dtype)
    if group.hidden is not None:
        gathered.view(-1, head_dim).index_fill_(0, group.hidden, 0.0)
    return gathered.view(group.batch, num_kv_heads, -1, head_dim)


def plan(
    meta: AttentionMetadata, k_cache: Tensor, q: Tensor, window: int = 0, sinks: bool = False
) -> list[PrefillGroup]:
    """Sort a batch into groups; see `paged_attention`, whether there are `sinks` being enough.

    Args:
        k_cache: `[pages, Hkv, page, D]`.
        q: `[T, H, D]`.

    In numpy: these are many operations on few numbers, where torch spends microseconds on each.
    """
    starts, seq_lens, tables = (
        tensor.cpu().numpy() for tensor in (meta.query_start, meta.seq_lens, meta.block_tables)
    )
    together: dict[int, list[int]] = defaultdict(list)
    groups = []
    for sequence, query_len in enumerate(np.diff(starts).tolist()):
        if sequence < meta.num_decodes or meta.mask_block > 1:
            together[query_len].append(sequence)
        else:
            cut = sinks or 0 < window < seq_lens[sequence]
            groups.append((query_len, [sequence], query_len == seq_lens[sequence] and not cut))
    groups += [(query_len, members, False) for query_len, members in together.items() if query_len]
    return [
        _group(
            meta.mask_block,
            window,
            k_cache,
            q,
            query_len,
            starts[which],
            seq_lens[which],
            tables[which],
            fresh,
        )
        for query_len, which, fresh in groups
        if query_len
    ]


def _group(
    mask_block: int,
    window: int,
    k_cache: Tensor,
    q: Tensor,
    query_len: int,
    starts: Ints,
    seq_lens: Ints,
    tables: Ints,
    fresh: bool,
) -> PrefillGroup:
    num_kv_heads, page_size = k_cache.shape[1:3]
    ends = seq_lens[:, None]
    pages = max(1, -(-int(seq_lens.max()) // page_size))
    # Entries past a sequence's end are arbitrary; page 0 replaces them, and its content is hidden.
    table = np.where(np.arange(pages) * page_size < ends, tables[:, :pages], 0).astype(np.int64)
    tiles = table[:, None, :] * num_kv_heads + np.arange(num_kv_heads)[:, None]

    tokens = np.arange(pages * page_size)
    outside = np.broadcast_to((tokens >= ends)[:, None], (len(ends), num_kv_heads, len(tokens)))
    hidden = np.flatnonzero(outside)
    positions = ends - query_len + np.arange(query_len)
    limits = np.minimum((positions // mask_block + 1) * mask_block, ends)
    begins = positions - window + 1 if window else np.zeros_like(positions)
    bias = None
    if not fresh and (limits.min() < len(tokens) or begins.max() > 0):
        unseen = (tokens >= limits[:, None, :, None]) | (tokens < begins[:, None, :, None])
        unseen = np.tile(unseen, (1, 1, q.shape[1] // num_kv_heads if query_len > 1 else 1, 1))
        bias = torch.zeros(unseen.shape, dtype=q.dtype).masked_fill_(torch.from_numpy(unseen), -torch.inf)
    blind = limits <= 0
    rows = starts[:, None].astype(np.int64) + np.arange(query_len)
    first, last = int(rows[0, 0]), int(rows[-1, -1])
    return PrefillGroup(
        batch=len(ends),
        query_len=query_len,
        rows=slice(first, last + 1) if last + 1 - first == rows.size else _on(q, rows.reshape(-1)),
        tiles=_on(q, tiles.reshape(-1)),
        hidden=_on(q, hidden) if hidden.size else None,
        causal=fresh,
        bias=None if bias is None else bias.to(q.device),
        blind=_on(q, blind) if blind.any() else None,
    )


def _on(q: Tensor, values: Ints) -> Tensor:
    return torch.from_numpy(values).to(q.device)
