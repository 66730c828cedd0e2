"""Batches for the attention tests, and attention written as the definition reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.attention import AttentionMetadata, paged_attention

GARBAGE_PAGE = 2**30


@dataclass(frozen=True)
class Batch:
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    meta: AttentionMetadata
    scale: float
    window: int = 0
    sinks: Tensor | None = None

    def attend(self) -> Tensor:
        return paged_attention(
            self.q, self.k_cache, self.v_cache, self.meta, self.scale, self.window, self.sinks
        )


def make_batch(
    lengths: Sequence[tuple[int, int]],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    page_size: int = 16,
    mask_block: int = 1,
    window: int = 0,
    sinks: bool = False,
    num_decodes: int | None = None,
    spare_pages: int = 3,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> Batch:
    """`lengths` holds (query_len, seq_len) per sequence, decodes first.

    Pages are scattered. Whatever is not a sequence's own token is NaN: other pages, the tail of last pages.
    Block tables are `spare_pages` wider than needed and hold ids of no page there.
    """
    generator = torch.Generator().manual_seed(seed)
    if num_decodes is None:
        num_decodes = next((i for i, (new, _) in enumerate(lengths) if new != 1), len(lengths))
    used = [-(-total // page_size) for _, total in lengths]
    num_pages = sum(used) + 2
    free = torch.randperm(num_pages, generator=generator).tolist()
    k_cache, v_cache = torch.full((2, num_pages, kv_heads, page_size, head_dim), math.nan)
    tables = torch.full((len(lengths), max([1, *used]) + spare_pages), GARBAGE_PAGE, dtype=torch.int32)
    for sequence, (_, total) in enumerate(lengths):
        for index in range(used[sequence]):
            page = free.pop()
            tables[sequence, index] = page
            filled = min(page_size, total - index * page_size)
            for cache in (k_cache, v_cache):
                cache[page, :, :filled] = torch.randn(kv_heads, filled, head_dim, generator=generator)
    news = [new for new, _ in lengths]
    starts = torch.tensor([0, *news], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    # A view into wider rows, as queries are in a fused QKV projection.
    q = torch.randn(sum(news), heads + 2, head_dim, generator=generator)[:, :heads]
    meta = AttentionMetadata(
        query_start=starts.to(device),
        seq_lens=torch.tensor([total for _, total in lengths], dtype=torch.int32, device=device),
        block_tables=tables.to(device),
        max_query_len=max(news, default=0),
        max_seq_len=max((total for _, total in lengths), default=0),
        num_decodes=num_decodes,
        mask_block=mask_block,
    )
    # Scores reach two or three: some sinks take nearly all of a softmax, and some next to nothing.
    scores = torch.randn(heads, generator=generator) * 3 if sinks else None
    return Batch(
        q.to(device, dtype),
        k_cache.to(device, dtype),
        v_cache.to(device, dtype),
        meta,
        1.3 / math.sqrt(head_dim),
        window,
        None if scores is None else scores.to(device, dtype),
    )


def naive(batch: Batch) -> Tensor:
    """Attention in float64, one query token and head at a time, keys picked one by one."""
    q, meta = batch.q.double(), batch.meta
    page_size, per_kv_head = batch.k_cache.shape[2], q.shape[1] // batch.k_cache.shape[1]
    starts, lengths = meta.query_start.tolist(), meta.seq_lens.tolist()
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for sequence, length in enumerate(lengths):
        pages = meta.block_tables[sequence].tolist()
        for row in range(starts[sequence], starts[sequence + 1]):
            position = length - starts[sequence + 1] + row
            seen = [k for k in range(length) if k // meta.mask_block <= position // meta.mask_block]
            seen = [k for k in seen if not batch.window or k > position - batch.window]
            if not seen:
                continue
            where = ([pages[k // page_size] for k in seen], slice(None), [k % page_size for k in seen])
            keys, values = batch.k_cache[where].double(), batch.v_cache[where].double()  # [seen, Hk, D]
            for head in range(q.shape[1]):
                scores = keys[:, head // per_kv_head] @ q[row, head] * batch.scale
                if batch.sinks is not None:
                    scores = torch.cat((scores, batch.sinks[head : head + 1].double()))
                out[row, head] = scores.softmax(0)[: len(seen)] @ values[:, head // per_kv_head]
    return out
