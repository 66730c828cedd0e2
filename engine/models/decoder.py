"""The one decoder: embedding, layers of attention and feed-forward around a residual stream, LM head.

Every supported architecture is this module with other switches in its `ModelConfig`. Inference only, on one
device, without Python code that depends on tensor values, so a forward can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.forward_context import ForwardContext
from engine.kernels.norm import rms_norm
from engine.layers.attention import Attention
from engine.layers.linear import Projection, product
from engine.layers.mlp import GatedMlp, SparseMlp
from engine.layers.parameter import weight
from engine.layers.rope import RopeTable
from engine.models.config import ModelConfig


class Decoder(nn.Module):
    """Decoder-only transformer; weights are uninitialised until `engine.models.weights` fills them."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.embedding = weight(config.vocab_size, config.hidden_size, dtype=dtype)
        self.rope = RopeTable(config.rope, config.rotary_dim)
        self.window_rope = self.rope
        if config.window_rope is not None:
            self.window_rope = RopeTable(config.window_rope, config.rotary_dim)
        windows = config.windows or (0,) * config.num_layers
        layers = (
            DecoderLayer(config, index, self.window_rope if window else self.rope, dtype)
            for index, window in enumerate(windows)
        )
        self.layers = nn.ModuleList(layers)
        if config.fp8:
            for projection in layer_projections(self):
                projection.quantise()
        self.norm = norm_weight(config, config.hidden_size, dtype)
        self.embedding_scale = float(torch.tensor(config.embedding_scale, dtype=dtype, device="cpu"))
        self.head: Projection | None = None
        if not config.tied_embeddings:
            self.head = Projection(config.hidden_size, config.vocab_size, dtype=dtype)

    def forward(self, input_ids: Tensor, context: ForwardContext) -> Tensor:
        """Hidden states `[T, hidden]` of the new tokens, after the final norm.

        Args:
            input_ids: `[T]` int64, the new tokens of all sequences, one after another.
        """
        hidden, residual = F.embedding(input_ids, self.embedding), None
        if self.embedding_scale != 1:
            hidden = hidden * self.embedding_scale
        for layer in self.layers:
            hidden, residual = layer(hidden, residual, context)
        return rms_norm(hidden, self.norm, self.config.rms_norm_eps, residual)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """`[R, hidden] -> [R, vocab]` float32; pass only rows that need logits."""
        logits = product(hidden, self.embedding) if self.head is None else self.head(hidden)
        return logits.float()

    def set_max_positions(self, count: int) -> None:
        """Compute the table of angles, on the device of the weights, for positions below `count`."""
        for rope in {self.rope, self.window_rope}:
            rope.compute(count, self.embedding.device)

    def track_expert_load(self) -> Tensor | None:
        """Start counting; `[sparse layers, experts]` int64, growing with every forward, None if dense.

        The caller reads it and sets it to zero. Counting costs one kernel per sparse layer; padded rows
        count as well, for they are computed.
        """
        sparse = [layer.mlp for layer in self.layers if isinstance(layer.mlp, SparseMlp)]
        if not sparse:
            return None
        device = self.embedding.device
        load = torch.zeros(len(sparse), self.config.experts, dtype=torch.int64, device=device)
        for mlp, row in zip(sparse, load, strict=True):
            mlp.load = row
        return load


def norm_dtype(config: ModelConfig, dtype: torch.dtype) -> torch.dtype:
    """float32 where weights are distances from one, which a narrow type would round."""
    return torch.float32 if config.norms_from_one else dtype


def norm_weight(config: ModelConfig, size: int, dtype: torch.dtype) -> nn.Parameter:
    """`[size]`, of a norm."""
    return weight(size, dtype=norm_dtype(config, dtype))


def layer_projections(decoder: Decoder) -> Iterator[Projection]:
    """Those of attention, of dense layers and of shared experts, which a checkpoint may have in float8."""
    for layer in cast("Sequence[DecoderLayer]", decoder.layers):
        yield from (layer.attention.qkv, layer.attention.out)
        mlp = layer.mlp.shared if isinstance(layer.mlp, SparseMlp) else layer.mlp
        if mlp is not None:
            yield from (mlp.gate_up, mlp.down)


class DecoderLayer(nn.Module):
    """Norm, attention, norm, feed-forward. The residual stream is added inside the norms."""

    def __init__(self, config: ModelConfig, index: int, rope: RopeTable, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.input_norm = norm_weight(config, config.hidden_size, dtype)
        self.attention = Attention(
            layer=index,
            rope=rope,
            hidden=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            eps=config.rms_norm_eps,
            qkv_bias=config.qkv_bias,
            out_bias=config.out_bias,
            qk_norm=config.qk_norm,
            window=config.windows[index] if config.windows else 0,
            sinks=config.sinks,
            scale=config.attention_scale,
            norm_dtype=norm_dtype(config, dtype),
            dtype=dtype,
        )
        self.post_norm = norm_weight(config, config.hidden_size, dtype)
        self.mlp = _mlp(config, index, dtype)
        self.attention_out_norm = self.mlp_out_norm = None
        if config.output_norms:
            self.attention_out_norm = norm_weight(config, config.hidden_size, dtype)
            self.mlp_out_norm = norm_weight(config, config.hidden_size, dtype)

    def forward(
        self, hidden: Tensor, residual: Tensor | None, context: ForwardContext
    ) -> tuple[Tensor, Tensor]:
        """Output of the feed-forward `[T, hidden]`, and the residual stream to add it to."""
        if residual is None:
            residual, hidden = hidden, rms_norm(hidden, self.input_norm, self.eps)
        else:
            hidden, residual = rms_norm(hidden, self.input_norm, self.eps, residual)
        hidden = self.attention(hidden, context)
        if self.attention_out_norm is not None:
            hidden = rms_norm(hidden, self.attention_out_norm, self.eps)
        hidden, residual = rms_norm(hidden, self.post_norm, self.eps, residual)
        hidden = self.mlp(hidden)
        if self.mlp_out_norm is not None:
            hidden = rms_norm(hidden, self.mlp_out_norm, self.eps)
        return hidden, residual


def _mlp(config: ModelConfig, index: int, dtype: torch.dtype) -> GatedMlp | SparseMlp:
    if config.router is None or index not in config.sparse_layers:
        sizes = {"hidden": config.hidden_size, "intermediate": config.intermediate_size}
        return GatedMlp(**sizes, gelu=config.gelu, dtype=dtype)
    return SparseMlp(
        hidden=config.hidden_size,
        experts=config.experts,
        intermediate=config.moe_intermediate_size,
        shared_intermediate=config.shared_intermediate_size,
        router=config.router,
        swiglu_limit=config.swiglu_limit,
        dtype=dtype,
    )
