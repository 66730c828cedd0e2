"""Inputs of a forward other than token ids and weights, as one object for every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.kernels.attention import AttentionMetadata
from engine.kernels.prompt_attention import FreshPrompts

KVCache = Sequence[tuple[Tensor, Tensor]]
"""Per layer `(k_cache, v_cache)`, each `[num_pages, num_kv_heads, page_size, head_dim]`."""


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """The T new tokens of a batch and the KV cache, passed down explicitly.

    A captured CUDA graph holds the addresses of these tensors: a replay reads their current content.
    """

    positions: Tensor
    """`[T]` int64, position of each new token in its sequence."""
    slots: Tensor
    """`[T]` int64, slot mapping: cache location of each token's keys and values, `page * page_size + offset`;
    -1 = nowhere."""
    attention: AttentionMetadata
    kv: KVCache
    fresh: FreshPrompts | None = None
    """The prompts, where none has anything cached and other kernels were chosen for such."""
