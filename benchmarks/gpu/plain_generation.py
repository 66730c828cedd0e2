"""Greedy generation as plain torch does it, on the engine's weights: what its throughput is compared with.

The way of HuggingFace's `generate`: static batches of prompts padded on the left, a contiguous KV cache per
layer, torch SDPA under a mask, keys and values repeated for grouped queries, one kernel after another, and a
batch runs until its longest request is done. Kinder than that in three things: the cache is allocated once
instead of growing, the fused matrices of the engine are used, and the host never waits for a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from blis_py.errors import InputError
from engine.layers.mlp import GatedMlp
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder, DecoderLayer

_PAD = 0


@torch.inference_mode()
def generate(decoder: Decoder, prompts: Sequence[list[int]], lengths: Sequence[int]) -> list[list[int]]:
    """Greedy outputs of one static batch, `lengths[i]` tokens each.

    Raises:
        InputError: the model is not a dense one with whole heads rotated.
    """
    config, device = decoder.config, decoder.embedding.device
    _check(config)
    width, steps = max(map(len, prompts)), max(lengths)
    padding = torch.tensor([width - len(prompt) for prompt in prompts])
    ids = torch.tensor([[_PAD] * (width - len(prompt)) + prompt for prompt in prompts]).to(device)
    places = torch.arange(width + steps)
    real = (places >= padding[:, None]).to(device)
    positions = (places - padding[:, None]).clamp_min(0).to(device)
    cache = KVCache(config, len(prompts), width + steps, decoder.embedding)
    # A padding token sees other padding: a row that sees nothing would be NaN and spoil its own values.
    seen = (real[:, None, :width] | ~real[:, :width, None]) & _causal(width, device)
    tokens = _forward(decoder, ids, positions[:, :width], seen[:, None], cache)
    outputs = [tokens]
    for end in range(width + 1, width + steps):
        now = positions[:, end - 1 : end]
        tokens = _forward(decoder, tokens[:, None], now, real[:, None, None, :end], cache)
        outputs.append(tokens)
    chosen = torch.stack(outputs, dim=1).tolist()
    return [row[:length] for row, length in zip(chosen, lengths, strict=True)]


class KVCache:
    """Keys and values of all layers, `[B, Hk, length, D]` each."""

    def __init__(self, config: ModelConfig, batch: int, length: int, like: Tensor) -> None:
        shape = (batch, config.num_kv_heads, length, config.head_dim)
        self._layers = [(like.new_zeros(shape), like.new_zeros(shape)) for _ in range(config.num_layers)]
        self.filled = 0

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Stores those of the new tokens `[B, Hk, T, D]`; returns those of all tokens."""
        end = self.filled + keys.shape[2]
        k, v = self._layers[layer]
        k[:, :, self.filled : end], v[:, :, self.filled : end] = keys, values
        return k[:, :, :end], v[:, :, :end]


def _forward(decoder: Decoder, ids: Tensor, positions: Tensor, visible: Tensor, cache: KVCache) -> Tensor:
    """The next token of each row `[B]`; `ids` and `positions` are `[B, T]`, `visible` is `[B, 1, T, all]`."""
    config = decoder.config
    x = F.embedding(ids, decoder.embedding)
    table = decoder.rope.cos_sin[positions][:, None].to(x.dtype)
    cos, sin = (part.repeat(1, 1, 1, 2) for part in table.chunk(2, dim=-1))
    for index, layer in enumerate(decoder.layers):
        assert isinstance(layer, DecoderLayer)
        x = x + _attend(layer, config, index, _norm(x, layer.input_norm, config), cos, sin, visible, cache)
        x = x + _feed_forward(layer, _norm(x, layer.post_norm, config))
    cache.filled += ids.shape[1]
    return decoder.logits(_norm(x[:, -1], decoder.norm, config)).argmax(dim=-1)


def _attend(
    layer: DecoderLayer,
    config: ModelConfig,
    index: int,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    visible: Tensor,
    cache: KVCache,
) -> Tensor:
    attention, heads, kv_heads = layer.attention, config.num_heads, config.num_kv_heads
    qkv = attention.qkv(x).unflatten(-1, (-1, config.head_dim))
    q, k, v = (part.transpose(1, 2) for part in qkv.split((heads, kv_heads, kv_heads), dim=2))
    if attention.q_norm is not None and attention.k_norm is not None:
        q, k = _norm(q, attention.q_norm, config), _norm(k, attention.k_norm, config)
    q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    keys, values = cache.append(index, k, v)
    group = heads // kv_heads
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=visible, scale=attention.scale)
    attended: Tensor = attention.out(mixed.transpose(1, 2).flatten(-2))
    return attended


def _feed_forward(layer: DecoderLayer, x: Tensor) -> Tensor:
    mlp = layer.mlp
    assert isinstance(mlp, GatedMlp)
    gate, up = mlp.gate_up(x).chunk(2, dim=-1)
    fed: Tensor = mlp.down(F.silu(gate) * up)
    return fed


def _norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps)
    return weight * wide.to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _causal(width: int, device: torch.device) -> Tensor:
    return torch.ones((width, width), dtype=torch.bool, device=device).tril()


def _check(config: ModelConfig) -> None:
    if config.router is not None or config.rotary_dim != config.head_dim or config.mask_block != 1:
        fix = "use a dense autoregressive model"
        raise InputError("is not for plain generation", key="--model", value=config.architecture, fix=fix)
