"""Grouped-query attention over the paged KV cache, with q, k and v projected by one matrix."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.forward_context import ForwardContext
from engine.kernels.attention import paged_attention
from engine.kernels.qkv import QkNorm, qk_norm_rope_store
from engine.layers.linear import MergedLinear, Projection
from engine.layers.parameter import weight
from engine.layers.rope import RopeTable


class Attention(nn.Module):
    """Rows of `qkv`: the heads of q, then of k, then of v.

    Args:
        layer: index into the KV cache.
        rope: may be shared between layers.
        qk_norm: RMSNorm over each head of q and k before the rotation.
        window: keys that a query sees at most; 0 = all before it.
        sinks: a learned score per head that takes its share of the softmax.
        scale: multiplies the scores; 0 = 1 / sqrt(head_dim).
        norm_dtype: of the weights of the norms.
    """

    def __init__(
        self,
        *,
        layer: int,
        rope: RopeTable,
        hidden: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        eps: float,
        qkv_bias: bool,
        out_bias: bool,
        qk_norm: bool,
        window: int,
        sinks: bool,
        scale: float,
        norm_dtype: torch.dtype,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim, self.eps = num_heads, num_kv_heads, head_dim, eps
        self.layer, self.rope, self.scale = layer, rope, scale or head_dim**-0.5
        q_rows, kv_rows = num_heads * head_dim, num_kv_heads * head_dim
        self.qkv = MergedLinear(hidden, q_rows, kv_rows, kv_rows, bias=qkv_bias, dtype=dtype)
        self.q_norm = weight(head_dim, dtype=norm_dtype) if qk_norm else None
        self.k_norm = weight(head_dim, dtype=norm_dtype) if qk_norm else None
        self.out = Projection(q_rows, hidden, bias=out_bias, dtype=dtype)
        self.window = window
        self.sinks = weight(num_heads, dtype=dtype) if sinks else None

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        """`[T, hidden] -> [T, hidden]`; stores the new keys and values in the cache."""
        k_cache, v_cache = context.kv[self.layer]
        q = qk_norm_rope_store(
            self.qkv(x),
            self.rope.cos_sin,
            context.positions,
            context.slots,
            k_cache,
            v_cache,
            self._norm(),
        )
        fresh = context.fresh
        if fresh is not None and not self.window and self.sinks is None:
            out = fresh.attention(q, k_cache, v_cache, context.slots, self.scale)
        else:
            out = paged_attention(q, k_cache, v_cache, context.attention, self.scale, self.window, self.sinks)
        return self.out(out.flatten(1))

    def _norm(self) -> QkNorm | None:
        if self.q_norm is None or self.k_norm is None:
            return None
        return QkNorm(self.q_norm, self.k_norm, self.eps)
