"""QK-norm, rotary embedding and paged KV store in one pass over the QKV projection.

A program handles BLOCK_HEADS heads of one token, whether queries, keys or values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from engine.kernels.fp8 import LARGEST
from engine.kernels.promise import Promise
from engine.kernels.qkv import QkNorm
from engine.kernels.triton.dependent import await_memory, launch_options

Tensor = torch.Tensor
BLOCK_HEADS = tl.constexpr(8)
FP8_LARGEST = tl.constexpr(LARGEST)


@triton.jit
def _gains(q_weight, k_weight, dims, is_q, HEAD_DIM: tl.constexpr):
    """The norm's weights at these dims, of the queries or of the keys by row."""
    of_q = tl.load(q_weight + dims, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
    of_k = tl.load(k_weight + dims, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
    return tl.where(is_q, of_q, of_k)


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
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    await_memory(DEPENDENT)
    HALF: tl.constexpr = ROTARY_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    dims = tl.arange(0, triton.next_power_of_2(HEAD_DIM))[None, :]
    is_q = heads < NUM_HEADS
    is_k = (heads >= NUM_HEADS) & (heads < NUM_HEADS + NUM_KV_HEADS)
    is_v = (heads >= NUM_HEADS + NUM_KV_HEADS) & (heads < NUM_HEADS + 2 * NUM_KV_HEADS)
    inside = (heads < NUM_HEADS + 2 * NUM_KV_HEADS) & (dims < HEAD_DIM)

    # Load the rotation partner beside each value; the second load hits the first-level cache.
    partners = tl.where(dims < HALF, dims + HALF, tl.where(dims < ROTARY_DIM, dims - HALF, dims))
    row = qkv + (token * (NUM_HEADS + 2 * NUM_KV_HEADS) + heads) * HEAD_DIM
    values = tl.load(row + dims, mask=inside, other=0.0).to(tl.float32)
    others = tl.load(row + partners, mask=inside, other=0.0).to(tl.float32)
    normed, normed_others = values, others
    if q_weight is not None:
        scale = tl.rsqrt(tl.sum(values * values, axis=1) / HEAD_DIM + eps)[:, None]
        normed = values * scale * _gains(q_weight, k_weight, dims, is_q, HEAD_DIM)
        normed_others = others * scale * _gains(q_weight, k_weight, partners, is_q, HEAD_DIM)

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
    place = (slot // PAGE_SIZE * NUM_KV_HEADS * PAGE_SIZE + slot % PAGE_SIZE) * HEAD_DIM + dims
    stored = inside & (slot >= 0)
    kv_type = k_cache.dtype.element_ty
    head_stride: tl.constexpr = PAGE_SIZE * HEAD_DIM
    k_place = k_cache + place + (heads - NUM_HEADS) * head_stride
    v_place = v_cache + place + (heads - NUM_HEADS - NUM_KV_HEADS) * head_stride
    if kv_type == tl.float8e4nv:
        rotated = tl.clamp(rotated, -FP8_LARGEST, FP8_LARGEST)
        values = tl.clamp(values, -FP8_LARGEST, FP8_LARGEST)
    tl.store(k_place, rotated.to(kv_type), mask=stored & is_k)
    tl.store(v_place, values.to(kv_type), mask=stored & is_v)


def qk_norm_rope_store(
    qkv: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    norm: QkNorm | None,
) -> Tensor:
    """See `engine.kernels.qkv.qk_norm_rope_store`."""
    tokens = qkv.shape[0]
    num_kv_heads, page_size, head_dim = k_cache.shape[1:]
    all_heads = qkv.shape[1] // head_dim
    num_heads = all_heads - 2 * num_kv_heads
    q_weight, k_weight, eps = norm or (None, None, 0.0)
    q = torch.empty(tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if tokens:
        _qk_norm_rope_store[(tokens, triton.cdiv(all_heads, BLOCK_HEADS))](
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
            NUM_HEADS=num_heads,
            NUM_KV_HEADS=num_kv_heads,
            HEAD_DIM=head_dim,
            ROTARY_DIM=cos_sin.shape[1],
            PAGE_SIZE=page_size,
            **launch_options(),
        )
    return q


def promise(kernel: str, constants: Mapping[str, Any]) -> Promise:
    """See `engine.kernels.aot`."""
    return Promise(max_registers=96)
