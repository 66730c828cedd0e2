"""Paged attention by two Triton kernels: one for decodes, one for everything longer."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.attention import AttentionMetadata
from engine.kernels.triton.decode_attention import decode_attention
from engine.kernels.triton.prefill_attention import prefill_attention


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    meta: AttentionMetadata,
    scale: float,
    window: int = 0,
    sinks: Tensor | None = None,
) -> Tensor:
    """See `engine.kernels.attention.paged_attention`.

    Raises:
        ValueError: the tensors are float32.
    """
    if q.shape[0] == 0 or meta.num_seqs == 0:
        return torch.zeros_like(q)
    if q.is_cuda and q.dtype == torch.float32:
        raise ValueError("the attention kernels take bfloat16 or float16 on CUDA, not float32")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if meta.num_decodes:
        decode_attention(q, k_cache, v_cache, meta, scale, out, window, sinks)
    if meta.num_decodes < meta.num_seqs:
        prefill_attention(q, k_cache, v_cache, meta, scale, out, window=window, sinks=sinks)
    return out
