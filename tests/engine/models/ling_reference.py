"""Ling 2.0 / LLaDA2 written down a second time, one token, head and expert at a time, in float64.

Transformers has no implementation of this architecture. This one shares nothing with the engine: it
recomputes everything from the checkpoint's tensors for every query, with no cache and no fused weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Tensors = Mapping[str, Array]


def logits(config: Mapping[str, Any], tensors: Tensors, ids: Sequence[int], mask_block: int) -> Array:
    """`[len(ids), vocab]`."""
    eps = config["rms_norm_eps"]
    hidden = tensors["model.word_embeddings.weight"][list(ids)]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        part = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        normed = rms_norm(hidden, part["input_layernorm.weight"], eps)
        hidden = hidden + attention(config, part, normed, mask_block)
        normed = rms_norm(hidden, part["post_attention_layernorm.weight"], eps)
        sparse = layer >= config["first_k_dense_replace"]
        mlp = (lambda x, p=part: experts(config, p, x)) if sparse else (lambda x, p=part: gated(p, "mlp", x))
        hidden = hidden + np.stack([mlp(x) for x in normed])
    return rms_norm(hidden, tensors["model.norm.weight"], eps) @ tensors["lm_head.weight"].T


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def attention(config: Mapping[str, Any], part: Tensors, x: Array, mask_block: int) -> Array:
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    qkv = x @ part["attention.query_key_value.weight"].T
    qkv = qkv.reshape(len(x), heads + 2 * kv_heads, dim)
    q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
    q = rms_norm(q, part["attention.query_layernorm.weight"], config["rms_norm_eps"])
    k = rms_norm(k, part["attention.key_layernorm.weight"], config["rms_norm_eps"])
    out = np.zeros((len(x), heads, dim))
    for i in range(len(x)):
        seen = [j for j in range(len(x)) if j // mask_block <= i // mask_block]
        for head in range(heads):
            group = head * kv_heads // heads
            query = rotate(config, q[i, head], i)
            scores = np.array([query @ rotate(config, k[j, group], j) for j in seen]) / math.sqrt(dim)
            shares = np.exp(scores - scores.max())
            out[i, head] = (shares / shares.sum()) @ v[seen, group]
    return out.reshape(len(x), -1) @ part["attention.dense.weight"].T


def rotate(config: Mapping[str, Any], x: Array, position: int) -> Array:
    """The first part of the head, dimension i paired with the one half a part further."""
    rotated = int(config["head_dim"] * config["partial_rotary_factor"])
    half, out = rotated // 2, x.copy()
    for i in range(half):
        angle = position * config["rope_theta"] ** (-2 * i / rotated)
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def gated(part: Tensors, prefix: str, x: Array) -> Array:
    gate, up = part[f"{prefix}.gate_proj.weight"] @ x, part[f"{prefix}.up_proj.weight"] @ x
    return part[f"{prefix}.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)


def experts(config: Mapping[str, Any], part: Tensors, x: Array) -> Array:
    out = gated(part, "mlp.shared_experts", x)
    for expert, weight in route(config, part, x).items():
        out = out + weight * gated(part, f"mlp.experts.{expert}", x)
    return out


def route(config: Mapping[str, Any], part: Tensors, x: Array) -> dict[int, float]:
    """Expert -> weight of one token."""
    scores = 1 / (1 + np.exp(-(part["mlp.gate.weight"] @ x)))
    biased = scores + part["mlp.gate.expert_bias"]
    size = config["num_experts"] // config["n_group"]
    groups = [range(start, start + size) for start in range(0, config["num_experts"], size)]
    groups.sort(key=lambda group: -sum(sorted(biased[list(group)])[-2:]))
    eligible = [expert for group in groups[: config["topk_group"]] for expert in group]
    chosen = sorted(eligible, key=lambda expert: -biased[expert])[: config["num_experts_per_tok"]]
    total = sum(scores[chosen]) if config["norm_topk_prob"] else 1.0
    return {expert: config["routed_scaling_factor"] * scores[expert] / total for expert in chosen}
