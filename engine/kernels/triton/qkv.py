"""QK-norm, rotary embedding and paged KV store in one pass over the QKV projection.

A program takes BLOCK_H heads of one token, whichever of queries, keys and values they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from engine.kernels.promise import Promise
from engine.kernels.qkv import check_norms

Tensor = torch.Tensor
BLOCK_H = 8


@triton.jit
def _qk_norm_rope_store(
    q_out,
    k_cache,
    v_cache,
    qkv,
    cos_sin,
    positions,
    slots,
    q_weight,
    k_weight,
    eps,
    stride_qkv,
    stride_page,
    stride_head,
    stride_slot,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    HALF: tl.constexpr = ROTARY_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    dims = tl.arange(0, BLOCK_D)[None, :]
    is_q = heads < NUM_HEADS
    is_k = (heads >= NUM_HEADS) & (heads < NUM_HEADS + NUM_KV_HEADS)
    is_v = (heads >= NUM_HEADS + NUM_KV_HEADS) & (heads < NUM_HEADS + 2 * NUM_KV_HEADS)
    inside = (heads < NUM_HEADS + 2 * NUM_KV_HEADS) & (dims < HEAD_DIM)

    # Beside each value the one it is rotated with; the second load finds the line in the first-level cache.
    partners = tl.where(dims < HALF, dims + HALF, tl.where(dims < ROTARY_DIM, dims - HALF, dims))
    row = qkv + token * stride_qkv + heads * HEAD_DIM
    values = tl.load(row + dims, mask=inside, other=0.0).to(tl.float32)
    others = tl.load(row + partners, mask=inside, other=0.0).to(tl.float32)
    normed, normed_others = values, others
    if NORM:
        scale = tl.rsqrt(tl.sum(values * values, axis=1) / HEAD_DIM + eps)[:, None]
        gain_q = tl.load(q_weight + dims, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
        gain_k = tl.load(k_weight + dims, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
        other_q = tl.load(q_weight + partners, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
        other_k = tl.load(k_weight + partners, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
        normed = values * scale * tl.where(is_q, gain_q, gain_k)
        normed_others = others * scale * tl.where(is_q, other_q, other_k)

    position = tl.load(positions + token)
    rotated_dims = dims < ROTARY_DIM
    frequency = tl.where(dims < HALF, dims, dims - HALF)
    angles = cos_sin + position * ROTARY_DIM + frequency
    cos = tl.load(angles, mask=rotated_dims, other=1.0)
    sin = tl.load(angles + HALF, mask=rotated_dims, other=0.0)
    rotated = normed * cos + tl.where(dims < HALF, -normed_others, normed_others) * sin

    q_place = q_out + (token * NUM_HEADS + heads) * HEAD_DIM + dims
    tl.store(q_place, rotated.to(q_out.dtype.element_ty), mask=inside & is_q)
    slot = tl.load(slots + token)
    place = (slot // PAGE_SIZE) * stride_page + (slot % PAGE_SIZE) * stride_slot + dims
    stored = inside & (slot >= 0)
    kv_type = k_cache.dtype.element_ty
    tl.store(k_cache + place + (heads - NUM_HEADS) * stride_head, rotated.to(kv_type), mask=stored & is_k)
    v_heads = heads - NUM_HEADS - NUM_KV_HEADS
    tl.store(v_cache + place + v_heads * stride_head, values.to(kv_type), mask=stored & is_v)


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
    check_norms(q_weight, k_weight)
    tokens = qkv.shape[0]
    q = torch.empty(tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if tokens:
        _qk_norm_rope_store[(tokens, triton.cdiv(num_heads + 2 * num_kv_heads, BLOCK_H))](
            q,
            k_cache,
            v_cache,
            qkv,
            cos_sin,
            positions,
            slots,
            q_weight,
            k_weight,
            eps,
            qkv.stride(0),
            k_cache.stride(0),
            k_cache.stride(1),
            k_cache.stride(2),
            NUM_HEADS=num_heads,
            NUM_KV_HEADS=num_kv_heads,
            HEAD_DIM=head_dim,
            ROTARY_DIM=cos_sin.shape[1],
            PAGE_SIZE=k_cache.shape[2],
            NORM=q_weight is not None,
            BLOCK_HEADS=BLOCK_H,
            BLOCK_D=triton.next_power_of_2(head_dim),
        )
    return q


def promise(kernel: str, constants: Mapping[str, Any]) -> Promise:
    """See `engine.kernels.aot`."""
    return Promise(max_registers=96)
