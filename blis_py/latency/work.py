"""Work of a step, from the architecture alone: FLOPs and bytes of one rank.

Per layer, with d hidden size, H and K heads per rank of size h, I width per rank, b bytes per activation,
w bytes per weight of that kind; T tokens, R emitted rows:

    projections   2*T*W_a FLOPs, w*W_a + b*T*(2d + (2H + 2K)*h) bytes        W_a = 2*d*(H + K)*h
    dense FFN     2*T*W_f, w*W_f + b*T*(2d + 3I)                             W_f = 3*d*I
    sparse FFN    2*T*(k*W_e + W_s + W_r),
                  w*(E*W_e + W_s) + b*W_r + b*T*(k + shared)*(2d + 3I)
                  W_e, W_s, W_r: one expert, the shared ones, the router;
                  E = N*(1 - (1 - k/N)^T) distinct experts under uniform routing
    attention     4*H*h FLOPs per query-key pair, 2*K*h*b bytes per token of KV
    all-reduce    2*b*T*d*2*(tp-1)/tp bytes over the link                    ring, tp > 1

and per step, over all layers where that matters:

    elementwise   (L*8*d + 3*I of every layer, k-fold in sparse ones)*b*T    norms, activation function
    LM head       2*R*W_v, w*W_v + b*R*(d + V)                               W_v = V*d
    sampling      6*R*V                                                      logits to 32 bits, top-1
"""

from __future__ import annotations

from typing import NamedTuple

from blis_py.hardware.capacity import kv_heads_per_rank
from blis_py.models.model_shape import ModelShape


class Work(NamedTuple):
    """FLOPs and bytes of a group of operators."""

    flops: float
    moved_bytes: float


def projections(shape: ModelShape, tp: int, tokens: int) -> Work:
    """q, k, v and o of one layer."""
    heads, kv_heads = shape.heads / tp, kv_heads_per_rank(shape, tp)
    weights = 2 * shape.hidden * (heads + kv_heads) * shape.head_dim
    activations = tokens * (2 * shape.hidden + 2 * (heads + kv_heads) * shape.head_dim)
    moved = weights * shape.weights.attention + activations * shape.dtype_bytes
    return Work(2 * tokens * weights, moved)


def dense_ffn(shape: ModelShape, tp: int, tokens: int) -> Work:
    """The feed-forward of one dense layer."""
    weights = shape.dense_ffn_parameters / tp
    activations = tokens * (2 * shape.hidden + 3 * shape.intermediate / tp)
    return Work(2 * tokens * weights, weights * shape.weights.dense + activations * shape.dtype_bytes)


def sparse_ffn(shape: ModelShape, tp: int, tokens: int) -> Work:
    """The feed-forward of one sparse layer: router, shared experts and the routed ones it needs."""
    used = shape.experts_per_token
    distinct = distinct_experts(shape.experts, used, tokens)
    expert, shared = shape.expert_parameters / tp, shape.shared_parameters / tp
    router = shape.router_parameters
    activations = tokens * (2 * (used + (1 if shared else 0)) * shape.hidden + 3 * active_width(shape) / tp)
    moved = distinct * expert * shape.weights.experts + shared * shape.weights.shared
    moved += (router + activations) * shape.dtype_bytes
    return Work(2 * tokens * (used * expert + shared + router), moved)


def distinct_experts(experts: int, per_token: int, tokens: int) -> float:
    """Expected number of experts to which at least one of `tokens` tokens is routed, under uniform
    routing.

    Real routing is skewed, so this is an upper bound.
    """
    return experts * (1.0 - (1.0 - per_token / experts) ** tokens)


def active_width(shape: ModelShape) -> int:
    """Feed-forward width that a token passes through in a sparse layer."""
    return shape.experts_per_token * shape.moe_intermediate + shape.shared_intermediate


def head(shape: ModelShape, tp: int, rows: int) -> Work:
    """LM head for the sequences that emit a token; nothing is read if none does."""
    if not rows:
        return Work(0.0, 0.0)
    weights = shape.embedding_parameters / tp
    activations = rows * (shape.hidden + shape.vocab / tp)
    return Work(2 * rows * weights, weights * shape.weights.head + activations * shape.dtype_bytes)


def sampling_bytes(shape: ModelShape, rows: int) -> int:
    return 6 * rows * shape.vocab


def elementwise_bytes(shape: ModelShape, tp: int, tokens: int) -> float:
    """Norms and activation functions of all layers."""
    dense = (shape.layers - shape.moe_layers) * shape.intermediate
    sparse = shape.moe_layers * active_width(shape)
    width = shape.layers * 8 * shape.hidden + 3 * (dense + sparse) / tp
    return tokens * width * shape.dtype_bytes


def all_reduce_bytes(shape: ModelShape, tp: int, tokens: int) -> float:
    """One of a layer's two all-reduces, as a ring; 0 on one GPU."""
    return tokens * shape.hidden * shape.dtype_bytes * 2 * (tp - 1) / tp


class AllReduce(NamedTuple):
    """The all-reduce of a layer over its ranks."""

    stages: int
    read_bytes: float
    """Bytes read by each rank."""


def all_reduce(shape: ModelShape, tp: int, tokens: int, fabric: bool) -> AllReduce:
    """One of a layer's two all-reduces, as implemented by vLLM and SGLang (custom_all_reduce.cuh).

    While the message is small, every rank reads the whole message of every other; from 512 KiB on (256 KiB
    beyond four ranks) each sums its share and then reads those of the others, which moves as much as a
    ring.

    Args:
        fabric: every GPU has a fast link to every other; otherwise more than two form a ring.
    """
    if tp == 1:
        return AllReduce(0, 0.0)
    ring_bytes = all_reduce_bytes(shape, tp, tokens)
    if tp == 2 or not fabric:
        return AllReduce(1, ring_bytes)
    message = tokens * shape.hidden * shape.dtype_bytes
    if message < (512 << 10 if tp <= 4 else 256 << 10):
        return AllReduce(1, message * (tp - 1))
    return AllReduce(2, ring_bytes)


def pair_flops(shape: ModelShape, tp: int) -> float:
    """Attention of all layers for one query-key pair."""
    return shape.layers * 4 * (shape.heads / tp) * shape.head_dim


def kv_token_bytes(shape: ModelShape, tp: int) -> int:
    """Keys and values of all layers for one token."""
    return shape.layers * 2 * kv_heads_per_rank(shape, tp) * shape.head_dim * shape.kv_dtype_bytes
