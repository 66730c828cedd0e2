"""A plain Qwen3 decoder for training: no KV cache, no batching tricks, HuggingFace parameter names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from blis_py.files.json_files import load_object
from engine.tiny.vocab import EOS, PAD, VOCAB_SIZE


@dataclass(frozen=True)
class Shape:
    """Sizes of the decoder; the defaults have 0.82 M parameters, 3.3 MB in float32."""

    layers: int = 4
    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 384
    rope_theta: float = 10_000.0
    eps: float = 1e-6


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, visible: Tensor) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down_proj = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, visible: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, visible)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """The part whose parameters HuggingFace prefixes with `model.`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB_SIZE, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.eps)


class Qwen3(nn.Module):
    """Decoder with tied embeddings. Initialised from torch's global random state."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__()
        self.shape = shape or Shape()
        self.model = Body(self.shape)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * self.shape.layers) ** 0.5 if into_residual else 0.02)

    def forward(
        self,
        ids: Tensor,
        mask_block: int = 1,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Hidden states after the final norm.

        Args:
            ids: [B, T] int64. Padding on the right needs no mask: no position attends to later ones.
            mask_block: key k is visible to query q iff k // mask_block <= q // mask_block; 1 is causal.
            positions: [B, T] int64; 0, 1, 2, ... if not given.
            documents: [B, T] int64: tokens see their own document only; one per row if not given.

        Returns:
            [B, T, hidden] float32.
        """
        if positions is None:
            positions = torch.arange(ids.shape[1]).expand_as(ids)
        half = torch.arange(0, self.shape.head_dim, 2) / self.shape.head_dim
        angles = (positions[:, None, :, None] * self.shape.rope_theta**-half).repeat(1, 1, 1, 2)
        cos, sin = angles.cos(), angles.sin()  # [B, 1, T, head_dim]
        visible = positions[:, None, :] // mask_block <= positions[:, :, None] // mask_block
        if documents is not None:
            visible &= documents[:, None, :] == documents[:, :, None]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin, visible[:, None])
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] to [..., vocabulary]."""
        return F.linear(hidden, self.model.embed_tokens.weight)


def hf_config(shape: Shape) -> dict[str, Any]:
    """The `config.json` of a shape, as transformers and the engine read it."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 512,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "torch_dtype": "float32",
    }


def save(model: Qwen3, folder: Path, extra_config: dict[str, Any] | None = None) -> None:
    """Write a HuggingFace checkpoint folder: config.json, generation_config.json, model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.detach().contiguous() for name, weight in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", hf_config(model.shape) | (extra_config or {}))
    write_json(folder / "generation_config.json", {"eos_token_id": EOS, "pad_token_id": PAD})


def load(folder: Path) -> Qwen3:
    """Read a folder that `save` wrote."""
    config = load_object(folder / "config.json")
    shape = Shape(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        ffn=config["intermediate_size"],
        rope_theta=config["rope_theta"],
        eps=config["rms_norm_eps"],
    )
    model = Qwen3(shape)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
