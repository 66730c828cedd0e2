"""Bytes that a forward of a whole model cannot avoid to read: what its time is held against."""

from __future__ import annotations

import torch

from engine.models.config import ModelConfig
from engine.models.weights import weight_bytes


def forward_bytes(config: ModelConfig, dtype: torch.dtype, tokens: int, kv_tokens: float) -> float:
    """Weights in use and the KV cache, read once, by a forward over `tokens` whose logits are needed.

    Of the embedding table a forward reads a row per token; the LM head it reads as a whole, which is the same
    table where embeddings are tied. Of a mixture of experts it reads those that the tokens are routed to.
    """
    elements = config.kv_elements_per_token / config.num_layers
    rows = tokens * config.hidden_size * dtype.itemsize
    table = 0 if config.tied_embeddings else config.vocab_size * config.hidden_size * dtype.itemsize
    weights = weight_bytes(config, dtype) - table + rows - _idle_expert_bytes(config, dtype, tokens)
    return weights + _kv_tokens_of_layers(config, tokens, kv_tokens) * elements * dtype.itemsize


def _kv_tokens_of_layers(config: ModelConfig, tokens: int, kv_tokens: float) -> float:
    """KV entries read, summed over the layers: under a sliding window a token sees no more than that.

    Exact for equal contexts; too many where some are shorter than the window and others longer.
    """
    windows = config.windows or (0,) * config.num_layers
    return sum(min(kv_tokens, tokens * window) if window else kv_tokens for window in windows)


def active_experts(config: ModelConfig, tokens: int) -> float:
    """Experts of a sparse layer that get any of so many tokens, where each goes to random ones."""
    assert config.router is not None
    share = config.router.top_k / config.experts
    return config.experts * (1 - (1 - share) ** tokens)


def _idle_expert_bytes(config: ModelConfig, dtype: torch.dtype, tokens: int) -> float:
    if config.router is None:
        return 0.0
    expert = 3 * config.hidden_size * config.moe_intermediate_size * dtype.itemsize
    return len(config.sparse_layers) * (config.experts - active_experts(config, tokens)) * expert
