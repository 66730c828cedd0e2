"""Mixture of experts: routing, alignment of the routed rows to experts, and the fused expert MLPs.

A *row* is one (token, choice) pair, numbered `token * top_k + choice`.
"""

from __future__ import annotations

import torch

from engine.kernels import backend
from engine.kernels.reference import moe as reference

Tensor = torch.Tensor


def route_softmax(logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """The top_k experts by softmax probability (Mixtral, Qwen3-MoE).

    logits: `[T, E]`. Returns weights `[T, k]` float32 in falling order and ids `[T, k]` int32; the lower id
    wins ties. `renormalize` makes the weights of a token sum to 1.
    """
    _check(logits, top_k)
    if backend.choose_cuda(logits) == "reference":
        return reference.route_softmax(logits, top_k, renormalize)
    from engine.kernels.cuda import moe

    return moe.route_softmax(logits, top_k, renormalize)


def route_grouped_sigmoid(
    logits: Tensor,
    bias: Tensor,
    top_k: int,
    num_groups: int,
    top_k_groups: int,
    renormalize: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The top_k experts by sigmoid score within the best groups (DeepSeek-V3, Ling, LLaDA2).

    logits: `[T, E]`; bias: `[E]`, added to the scores for the selection only. The experts form num_groups
    equal groups; a group scores the sum of its two best biased scores, and only the top_k_groups best groups
    are eligible. The weights are the unbiased scores, summing to 1 with `renormalize`, times scale.
    Returns weights `[T, k]` float32 in falling order of the biased score and ids `[T, k]` int32; the lower
    id wins ties.
    """
    _check(logits, top_k)
    experts = logits.shape[1]
    if experts % num_groups or experts // num_groups < 2:
        raise ValueError(f"{experts} experts do not form {num_groups} equal groups of two or more")
    if not 1 <= top_k_groups <= num_groups or top_k > top_k_groups * (experts // num_groups):
        raise ValueError(f"{top_k_groups} of {num_groups} groups do not hold {top_k} experts to choose")
    if backend.choose_cuda(logits) == "reference":
        run = reference.route_grouped_sigmoid
    else:
        from engine.kernels.cuda import moe

        run = moe.route_grouped_sigmoid
    return run(logits, bias, top_k, num_groups, top_k_groups, renormalize, scale)


def align_experts(ids: Tensor, num_experts: int, block_m: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort the routed rows by expert, each expert padded to a multiple of block_m rows.

    ids: `[T, k]` int32. Returns `rows` int32, the row numbers grouped by expert in rising order, with
    `T * k` in the padding; `tile_experts` int32, the expert of each tile of block_m rows, -1 past the last
    used tile; and `padded` `[1]` int32, the number of rows in use including the padding. The lengths depend
    on shapes only (the worst case), so a captured CUDA graph can hold them.
    """
    if backend.choose_cuda(ids) == "reference":
        return reference.align_experts(ids, num_experts, block_m)
    from engine.kernels.cuda import moe

    return moe.align_experts(ids, num_experts, block_m)


def fused_moe(x: Tensor, w13: Tensor, w2: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """The expert MLPs: `sum over k of weights[t, k] * w2[e] @ swiglu(w13[e] @ x[t])` with e = ids[t, k].

    x: `[T, d]`; w13: `[E, 2f, d]`, gate rows then up rows; w2: `[E, d, f]`; weights: `[T, k]` float32;
    ids: `[T, k]` int32. Returns `[T, d]` in x's dtype; sums are kept in float32.
    """
    if backend.choose(x) == "reference":
        return reference.fused_moe(x, w13, w2, weights, ids)
    from engine.kernels.triton import moe

    return moe.fused_moe(x, w13, w2, weights, ids)


def _check(logits: Tensor, top_k: int) -> None:
    if not 1 <= top_k <= logits.shape[1]:
        raise ValueError(f"top_k {top_k} of {logits.shape[1]} experts: choose between 1 and all of them")
