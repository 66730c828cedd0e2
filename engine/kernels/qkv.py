"""From the QKV projection to attention: QK-norm, rotary embedding and the store into the paged KV cache."""

from __future__ import annotations

import torch

from engine.kernels import backend
from engine.kernels.reference import qkv as reference

Tensor = torch.Tensor


def qk_norm_rope_store(
    qkv: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
) -> Tensor:
    """Normalise and rotate queries and keys, store keys and values at their slots; returns q `[T, H, D]`.

    qkv: `[T, (H + 2 Hk) D]`, queries then keys then values. q_weight, k_weight: `[D]`, the RMSNorm per head
    that comes before the rotation; both or neither. cos_sin: `[max_pos, R]` float32, the cosines of R/2
    frequencies then their sines; the first R dims of a head are rotated in the half-split ("rotate_half")
    layout, the others pass through. positions: `[T]` int64. slots: `[T]` int64, `page * page_size + offset`,
    and -1 stores nothing. k_cache, v_cache: `[num_pages, Hk, page_size, D]`, written in place.
    """
    if (q_weight is None) != (k_weight is None):
        raise ValueError("QK-norm takes a weight for queries and one for keys: give both or neither")
    if backend.choose(qkv) == "reference":
        run = reference.qk_norm_rope_store
    else:
        from engine.kernels.triton import qkv as triton_qkv

        run = triton_qkv.qk_norm_rope_store
    return run(
        qkv,
        cos_sin,
        positions,
        slots,
        k_cache,
        v_cache,
        num_heads,
        num_kv_heads,
        head_dim,
        q_weight,
        k_weight,
        eps,
    )
