"""Paged attention: what a batch looks like, and the one function that attends it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engine.kernels import backend


@dataclass(frozen=True, eq=False)
class AttentionMetadata:
    """One batch of S sequences whose new tokens lie one after another in the query rows.

    Query token `i` of sequence `s` sits at absolute position `seq_lens[s] - query_len[s] + i`, where
    `query_len[s] = query_start[s + 1] - query_start[s]`. It sees key `k` if and only if
    `k // mask_block <= position // mask_block` and `k < seq_lens[s]`.

    Args:
        query_start: `[S + 1]` int32, first query row of each sequence; the last entry is the number of rows.
        seq_lens: `[S]` int32, tokens in the KV cache including the new ones. 0 marks a padded row, whose
            output is zero.
        block_tables: `[S, max_pages]` int32, pages of each sequence in order. Entries past a sequence's
            last page are never followed.
        max_query_len: at least the longest `query_len`.
        max_seq_len: at least the longest `seq_lens`.
        num_decodes: how many of the first sequences have exactly one query token; the rest are prefills,
            chunks or diffusion blocks.
        mask_block: 1 is causal, 32 is block-causal over blocks of 32.

    The two maxima size a launch and the tensors say what to do in it, so that a CUDA graph captured with
    this object attends whatever batch is copied into its tensors. The CPU path instead keeps what it derived
    from the tensors in `plans`: make a new object for each batch there.
    """

    query_start: Tensor
    seq_lens: Tensor
    block_tables: Tensor
    max_query_len: int
    max_seq_len: int
    num_decodes: int
    mask_block: int = 1
    plans: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def num_seqs(self) -> int:
        return self.seq_lens.shape[0]


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, meta: AttentionMetadata, scale: float
) -> Tensor:
    """Softmax attention of each query over its sequence's paged keys and values.

    Args:
        q: `[T, H, D]`, the last dimension contiguous; every row belongs to a sequence of `meta`.
        k_cache, v_cache: `[num_pages, Hk, page_size, D]` of equal strides, the last dimension contiguous;
            query head `h` attends KV head `h // (H // Hk)`. The new tokens are already stored.
        scale: multiplies the scores; positive.

    Returns:
        `[T, H, D]` in the dtype of `q`.

    Raises:
        ValueError: shapes or strides that do not fit together.
    """
    _check(q, k_cache, v_cache, meta)
    if q.shape[0] == 0 or meta.num_seqs == 0:
        return torch.zeros_like(q)
    if backend.choose(q) == "reference":
        from engine.kernels.reference.attention import paged_attention as reference

        return reference(q, k_cache, v_cache, meta, scale)
    if q.is_cuda and q.dtype == torch.float32:
        raise ValueError("the attention kernels take bfloat16 or float16 on CUDA, not float32")
    from engine.kernels.triton.decode_attention import decode_attention
    from engine.kernels.triton.prefill_attention import prefill_attention

    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if meta.num_decodes:
        decode_attention(q, k_cache, v_cache, meta, scale, out)
    if meta.num_decodes < meta.num_seqs:
        prefill_attention(q, k_cache, v_cache, meta, scale, out)
    return out


def _check(q: Tensor, k_cache: Tensor, v_cache: Tensor, meta: AttentionMetadata) -> None:
    if k_cache.shape != v_cache.shape or k_cache.stride() != v_cache.stride():
        raise ValueError(f"k_cache and v_cache differ: {k_cache.shape} and {v_cache.shape}, or their strides")
    if q.shape[2] != k_cache.shape[3] or q.shape[1] % k_cache.shape[1]:
        raise ValueError(f"queries {tuple(q.shape)} do not fit a cache of {tuple(k_cache.shape)}")
    if q.stride(2) != 1 or k_cache.stride(3) != 1:
        raise ValueError("the head dimension of queries and cache must be contiguous")
    if meta.num_decodes > min(meta.num_seqs, q.shape[0]):
        raise ValueError(f"{meta.num_decodes} decodes in {meta.num_seqs} sequences of {q.shape[0]} tokens")
