"""QK-norm, rotary embedding and paged KV store in torch."""

from __future__ import annotations

import torch

from engine.kernels.reference.norm import normalize

Tensor = torch.Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first `2 * cos.shape[-1]` dims of x `[T, heads, D]` float32, in half-split pairs."""
    half = cos.shape[-1]
    first, second, rest = torch.split_with_sizes(x, [half, half, x.shape[-1] - 2 * half], dim=-1)
    turned_first = torch.addcmul(first * cos, second, sin, value=-1)
    return torch.cat((turned_first, torch.addcmul(second * cos, first, sin), rest), dim=-1)


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
    """See `engine.kernels.qkv.qk_norm_rope_store`."""
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    qk, v = torch.split_with_sizes(heads, [num_heads + num_kv_heads, num_kv_heads], dim=1)
    sizes = [num_heads, num_kv_heads]
    if q_weight is None or k_weight is None:
        qk = qk.float()
    else:
        qk = normalize(qk, None, eps)
        q, k = torch.split_with_sizes(qk, sizes, dim=1)
        q.mul_(q_weight)
        k.mul_(k_weight)
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    q, k = torch.split_with_sizes(rotate(qk, cos, sin).to(qkv.dtype), sizes, dim=1)
    if len(slots) and int(slots.min()) < 0:
        kept = slots >= 0
        slots, k, v = slots[kept], k[kept], v[kept]
    page_size = k_cache.shape[2]
    pages = slots // page_size
    offsets = torch.sub(slots, pages, alpha=page_size)
    k_cache.transpose(1, 2)[pages, offsets] = k
    v_cache.transpose(1, 2)[pages, offsets] = v
    return q.contiguous()
