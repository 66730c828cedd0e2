"""Routing and alignment by the CUDA C++ kernels."""

from __future__ import annotations

import torch

from engine.kernels import moe
from engine.kernels.cuda.library import launch, pointer

Tensor = torch.Tensor
MAX_ROUTED_EXPERTS = 512
MAX_ALIGNED_EXPERTS = 1024
WARP = 32


def route_softmax(logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """See `engine.kernels.moe.route_softmax`."""
    tokens, experts = logits.shape
    if experts > MAX_ROUTED_EXPERTS or top_k > WARP:
        return moe.route_softmax.reference(logits, top_k, renormalize)
    logits = _routable(logits)
    weights, ids = _outputs(logits, top_k)
    if tokens:
        launch(
            "blis_route_softmax",
            logits.device,
            logits.data_ptr(),
            logits.dtype == torch.bfloat16,
            tokens,
            experts,
            top_k,
            renormalize,
            weights.data_ptr(),
            ids.data_ptr(),
        )
    return weights, ids


def route_grouped_sigmoid(
    logits: Tensor,
    bias: Tensor,
    top_k: int,
    num_groups: int,
    top_k_groups: int,
    renormalize: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """See `engine.kernels.moe.route_grouped_sigmoid`."""
    tokens, experts = logits.shape
    if experts > MAX_ROUTED_EXPERTS or top_k > WARP or num_groups > WARP:
        return moe.route_grouped_sigmoid.reference(
            logits, bias, top_k, num_groups, top_k_groups, renormalize, scale
        )
    logits, bias = _routable(logits), bias.float().contiguous()
    weights, ids = _outputs(logits, top_k)
    if tokens:
        launch(
            "blis_route_grouped_sigmoid",
            logits.device,
            logits.data_ptr(),
            logits.dtype == torch.bfloat16,
            bias.data_ptr(),
            tokens,
            experts,
            top_k,
            num_groups,
            top_k_groups,
            renormalize,
            scale,
            weights.data_ptr(),
            ids.data_ptr(),
        )
    return weights, ids


def align_experts(ids: Tensor, num_experts: int, block_m: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `engine.kernels.moe.align_experts`."""
    if num_experts > MAX_ALIGNED_EXPERTS:
        return moe.align_experts.reference(ids, num_experts, block_m)
    ids = ids.contiguous()
    capacity = moe.padded_rows(ids.numel(), num_experts, block_m)
    rows = torch.empty(capacity, dtype=torch.int32, device=ids.device)
    tile_experts = torch.empty(capacity // block_m, dtype=torch.int32, device=ids.device)
    padded = torch.empty(1, dtype=torch.int32, device=ids.device)
    launch(
        "blis_align_experts",
        ids.device,
        pointer(ids, torch.int32),
        ids.numel(),
        num_experts,
        block_m,
        capacity,
        rows.data_ptr(),
        tile_experts.data_ptr(),
        padded.data_ptr(),
    )
    return rows, tile_experts, padded


def _routable(logits: Tensor) -> Tensor:
    return (logits if logits.dtype == torch.bfloat16 else logits.float()).contiguous()


def _outputs(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    shape, device = (logits.shape[0], top_k), logits.device
    return (
        torch.empty(shape, dtype=torch.float32, device=device),
        torch.empty(shape, dtype=torch.int32, device=device),
    )
