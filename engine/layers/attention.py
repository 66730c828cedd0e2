"""Grouped-query attention over the paged KV cache, with q, k and v projected by one matrix."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.attention import AttentionMetadata, paged_attention
from engine.kernels.qkv import QkNorm, qk_norm_rope_store
from engine.layers.parameter import weight


class Attention(nn.Module):
    """Rows of `qkv_weight`: the heads of q, then of k, then of v.

    Args:
        qk_norm: RMSNorm over each head of q and k before the rotation.
    """

    def __init__(
        self,
        *,
        hidden: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        eps: float,
        qkv_bias: bool,
        out_bias: bool,
        qk_norm: bool,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim, self.eps = num_heads, num_kv_heads, head_dim, eps
        self.scale = head_dim**-0.5
        rows = (num_heads + 2 * num_kv_heads) * head_dim
        self.qkv_weight = weight(rows, hidden, dtype=dtype)
        self.qkv_bias = weight(rows, dtype=dtype) if qkv_bias else None
        self.q_norm = weight(head_dim, dtype=dtype) if qk_norm else None
        self.k_norm = weight(head_dim, dtype=dtype) if qk_norm else None
        self.out_weight = weight(hidden, num_heads * head_dim, dtype=dtype)
        self.out_bias = weight(hidden, dtype=dtype) if out_bias else None

    def forward(
        self,
        x: Tensor,
        cos_sin: Tensor,
        positions: Tensor,
        slots: Tensor,
        meta: AttentionMetadata,
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> Tensor:
        """`[T, hidden] -> [T, hidden]`; stores the new keys and values at `slots`."""
        q = qk_norm_rope_store(
            F.linear(x, self.qkv_weight, self.qkv_bias),
            cos_sin,
            positions,
            slots,
            k_cache,
            v_cache,
            self._norm(),
        )
        out = paged_attention(q, k_cache, v_cache, meta, self.scale)
        return F.linear(out.flatten(1), self.out_weight, self.out_bias)

    def _norm(self) -> QkNorm | None:
        if self.q_norm is None or self.k_norm is None:
            return None
        return QkNorm(self.q_norm, self.k_norm, self.eps)
