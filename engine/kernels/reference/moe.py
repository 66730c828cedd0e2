"""Mixture of experts in torch."""

from __future__ import annotations

import torch

from engine.kernels.reference.activation import swiglu

Tensor = torch.Tensor


def top_experts(scores: Tensor, top_k: int) -> Tensor:
    """Ids `[T, k]` int64 of the highest scores `[T, E]` float32, falling; the lower id first in a tie.

    `torch.topk` leaves ties open, so it is given distinct integers: the score's bits, made to order like the
    score, above the reversed id.
    """
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)  # minus zero becomes zero: they are equal
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    experts = scores.shape[1]
    reversed_ids = torch.arange(experts - 1, -1, -1, device=scores.device)
    return torch.topk((ordered << 32) + reversed_ids, top_k, dim=-1).indices


def route_softmax(logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """See `engine.kernels.moe.route_softmax`."""
    wide = logits.float()
    ids = top_experts(wide, top_k)
    if renormalize:
        weights = torch.softmax(wide.gather(1, ids), dim=-1)
    else:
        weights = torch.softmax(wide, dim=-1).gather(1, ids)
    return weights, ids.to(torch.int32)


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
    scores = torch.sigmoid(logits.float())
    biased = scores + bias.float()
    if top_k_groups < num_groups:
        groups = biased.view(len(biased), num_groups, biased.shape[1] // num_groups)
        group_scores = groups.topk(2, dim=-1).values.sum(dim=-1)
        eligible = torch.zeros_like(group_scores, dtype=torch.bool)
        eligible.scatter_(1, top_experts(group_scores, top_k_groups), True)
        biased = groups.masked_fill(~eligible.unsqueeze(-1), -torch.inf).flatten(1)
    ids = top_experts(biased, top_k)
    weights = scores.gather(1, ids)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-20)
    return weights * scale, ids.to(torch.int32)


def padded_capacity(num_rows: int, num_experts: int, block_m: int) -> int:
    """The most rows that alignment can need: every expert with a row wastes at most block_m - 1."""
    worst = num_rows + min(num_experts, num_rows) * (block_m - 1)
    return -(-worst // block_m) * block_m


def align_experts(ids: Tensor, num_experts: int, block_m: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `engine.kernels.moe.align_experts`."""
    flat = ids.flatten().to(torch.int64)
    capacity = padded_capacity(flat.numel(), num_experts, block_m)
    # Not bincount: on CUDA that waits for the device, and could not be captured in a graph.
    counts = torch.zeros(num_experts, dtype=torch.int64, device=ids.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    tiles = (counts + block_m - 1) // block_m
    tile_ends = tiles.cumsum(0)
    order = torch.argsort(flat, stable=True)
    grouped = flat[order]
    first_row = (tile_ends - tiles) * block_m
    first_sorted = counts.cumsum(0) - counts
    places = first_row[grouped] + torch.arange(flat.numel(), device=ids.device) - first_sorted[grouped]
    rows = torch.full((capacity,), flat.numel(), dtype=torch.int32, device=ids.device)
    rows[places] = order.to(torch.int32)
    tile = torch.arange(capacity // block_m, device=ids.device)
    owner = torch.searchsorted(tile_ends, tile, right=True)
    tile_experts = torch.where(owner < num_experts, owner, -1).to(torch.int32)
    return rows, tile_experts, (tile_ends[-1:] * block_m).to(torch.int32)


def fused_moe(x: Tensor, w13: Tensor, w2: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """See `engine.kernels.moe.fused_moe`. One pair of matrix products for each expert that has rows."""
    tokens, top_k = ids.shape
    flat = ids.flatten().to(torch.int64)
    order = torch.argsort(flat, stable=True)
    gathered = x[order // top_k]
    products = torch.empty(tokens * top_k, x.shape[1], dtype=x.dtype, device=x.device)
    start = 0
    for expert, count in enumerate(torch.bincount(flat, minlength=w13.shape[0]).tolist()):
        if count:
            hidden = swiglu(gathered[start : start + count] @ w13[expert].T)
            products[start : start + count] = hidden @ w2[expert].T
            start += count
    by_row = torch.empty_like(products)
    by_row[order] = products
    combined = torch.bmm(weights.float().unsqueeze(1), by_row.view(tokens, top_k, x.shape[1]).float())
    return combined.squeeze(1).to(x.dtype)
