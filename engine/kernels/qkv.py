"""QK-norm, rotary embedding and the store into the paged KV cache, between QKV projection and attention."""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.kernels.fp8 import FP8, as_fp8
from engine.kernels.norm import normalize
from engine.kernels.op import op

Tensor = torch.Tensor


class QkNorm(NamedTuple):
    """RMSNorm of every head of the queries and of the keys; weights `[D]`."""

    q_weight: Tensor
    k_weight: Tensor
    eps: float


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first `2 * cos.shape[-1]` dims of x `[T, heads, D]` float32, in half-split pairs."""
    half = cos.shape[-1]
    first, second, rest = torch.split_with_sizes(x, [half, half, x.shape[-1] - 2 * half], dim=-1)
    turned_first = torch.addcmul(first * cos, second, sin, value=-1)
    return torch.cat((turned_first, torch.addcmul(second * cos, first, sin), rest), dim=-1)


def _check(
    qkv: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    norm: QkNorm | None,
) -> None:
    if k_cache.shape != v_cache.shape:
        raise ValueError(f"k_cache and v_cache differ: {k_cache.shape} and {v_cache.shape}")
    if not all(tensor.is_contiguous() for tensor in (qkv, k_cache, v_cache)):
        raise ValueError("the QKV projection and the KV cache must be contiguous")


@op("triton", check=_check)
def qk_norm_rope_store(
    qkv: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    norm: QkNorm | None,
) -> Tensor:
    """Normalise and rotate queries and keys, store keys and values at their slots; returns q `[T, H, D]`.

    qkv: `[T, (H + 2 Hk) D]`, queries then keys then values. cos_sin: `[max_pos, R]` float32, the cosines of
    R/2 frequencies then their sines; the first R dims of a head are rotated in the half-split ("rotate_half")
    layout, the others pass through. positions: `[T]` int64. slots: `[T]` int64, the slot mapping:
    `page * page_size + offset`, and -1 stores nothing. k_cache, v_cache: `[num_pages, Hk, page_size, D]`,
    written in place; in float8, what is larger than its largest number becomes that. norm: applied before
    the rotation.
    """
    num_kv_heads, page_size, head_dim = k_cache.shape[1:]
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    sizes = [heads.shape[1] - 2 * num_kv_heads, num_kv_heads]
    qk, v = torch.split_with_sizes(heads, [sum(sizes), num_kv_heads], dim=1)
    if norm is None:
        qk = qk.float()
    else:
        qk = normalize(qk, None, norm.eps)
        q, k = torch.split_with_sizes(qk, sizes, dim=1)
        q.mul_(norm.q_weight)
        k.mul_(norm.k_weight)
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    q, k = torch.split_with_sizes(rotate(qk, cos, sin).to(qkv.dtype), sizes, dim=1)
    if len(slots) and int(slots.min()) < 0:
        kept = slots >= 0
        slots, k, v = slots[kept], k[kept], v[kept]
    pages = slots // page_size
    offsets = torch.sub(slots, pages, alpha=page_size)
    for cache, values in ((k_cache, k), (v_cache, v)):
        if cache.dtype == FP8:
            cache.view(torch.uint8).transpose(1, 2)[pages, offsets] = as_fp8(values).view(torch.uint8)
        else:
            cache.transpose(1, 2)[pages, offsets] = values
    return q.contiguous()
