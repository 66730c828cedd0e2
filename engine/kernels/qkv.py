"""From the QKV projection to attention: QK-norm, rotary embedding and the store into the paged KV cache."""

from __future__ import annotations

import torch

from engine.kernels.norm import normalize
from engine.kernels.op import op

Tensor = torch.Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first `2 * cos.shape[-1]` dims of x `[T, heads, D]` float32, in half-split pairs."""
    half = cos.shape[-1]
    first, second, rest = torch.split_with_sizes(x, [half, half, x.shape[-1] - 2 * half], dim=-1)
    turned_first = torch.addcmul(first * cos, second, sin, value=-1)
    return torch.cat((turned_first, torch.addcmul(second * cos, first, sin), rest), dim=-1)


def check_norms(q_weight: Tensor | None, k_weight: Tensor | None) -> None:
    """QK-norm has a weight for queries and one for keys, or there is none."""
    if (q_weight is None) != (k_weight is None):
        raise ValueError("QK-norm takes a weight for queries and one for keys: give both or neither")


@op("triton")
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
    check_norms(q_weight, k_weight)
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
