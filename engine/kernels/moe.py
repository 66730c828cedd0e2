"""Mixture of experts: routing, alignment of the routed rows to experts, and the fused expert MLPs.

A *row* is one (token, choice) pair, numbered `token * top_k + choice`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.kernels.activation import swiglu
from engine.kernels.op import op

Tensor = torch.Tensor
SWIGLU_STEEPNESS = 1.702
"""Steepness of the sigmoid in `clamped_swiglu`."""


def top_experts(scores: Tensor, top_k: int) -> Tensor:
    """Ids `[T, k]` int64 of the highest scores `[T, E]` float32, in descending order; ties: the lower id.

    `torch.topk` leaves ties open, so it operates on distinct integers: the score's bits in order-preserving
    form, followed by the reversed id.
    """
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)  # minus zero becomes zero: they are equal
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    experts = scores.shape[1]
    reversed_ids = torch.arange(experts - 1, -1, -1, device=scores.device)
    return torch.topk((ordered << 32) + reversed_ids, top_k, dim=-1).indices


def _check_choice(logits: Tensor, top_k: int, renormalize: bool) -> None:
    if not 1 <= top_k <= logits.shape[1]:
        raise ValueError(f"top_k {top_k} of {logits.shape[1]} experts: choose between 1 and all of them")


def _check_groups(
    logits: Tensor,
    bias: Tensor,
    top_k: int,
    num_groups: int,
    top_k_groups: int,
    renormalize: bool,
    scale: float,
) -> None:
    _check_choice(logits, top_k, renormalize)
    experts = logits.shape[1]
    if experts % num_groups or experts // num_groups < 2:
        raise ValueError(f"{experts} experts do not form {num_groups} equal groups of two or more")
    if not 1 <= top_k_groups <= num_groups or top_k > top_k_groups * (experts // num_groups):
        raise ValueError(f"{top_k_groups} of {num_groups} groups do not hold {top_k} experts to choose")


@op("cuda", check=_check_choice)
def route_softmax(logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """The top_k experts by softmax probability (Mixtral, Qwen3-MoE).

    logits: `[T, E]`. Returns weights `[T, k]` float32 in falling order and ids `[T, k]` int32; the lower id
    wins ties. `renormalize` makes the weights of a token sum to 1.
    """
    wide = logits.float()
    ids = top_experts(wide, top_k)
    if renormalize:
        weights = torch.softmax(wide.gather(1, ids), dim=-1)
    else:
        weights = torch.softmax(wide, dim=-1).gather(1, ids)
    return weights, ids.to(torch.int32)


@op("cuda", check=_check_groups)
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


def padded_rows(num_rows: int, num_experts: int, block_m: int) -> int:
    """Upper bound of the aligned rows: every expert with a row wastes at most block_m - 1."""
    worst = num_rows + min(num_experts, num_rows) * (block_m - 1)
    return -(-worst // block_m) * block_m


@op("cuda")
def align_experts(ids: Tensor, num_experts: int, block_m: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort the routed rows by expert, each expert padded to a multiple of block_m rows.

    ids: `[T, k]` int32. Returns `rows` int32, the row numbers grouped by expert in rising order, with
    `T * k` in the padding; `tile_experts` int32, the expert of each tile of block_m rows, -1 past the last
    used tile; and `padded` `[1]` int32, the number of rows in use including the padding. The lengths depend
    on shapes only (the worst case), so a captured CUDA graph can hold them.
    """
    flat = ids.flatten().to(torch.int64)
    capacity = padded_rows(flat.numel(), num_experts, block_m)
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


def clamped_swiglu(x: Tensor, limit: float) -> Tensor:
    """SwiGLU of gpt-oss for x `[T, 2f]`, gate first: `(up + 1) * gate * sigmoid(1.702 * gate)`, `[T, f]`.

    The gate is at most `limit`, up within plus and minus `limit`.
    """
    gate, up = x.float().chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return ((up + 1) * gate * torch.sigmoid(SWIGLU_STEEPNESS * gate)).to(x.dtype)


@op("triton")
def fused_moe(
    x: Tensor,
    w13: Tensor,
    w2: Tensor,
    weights: Tensor,
    ids: Tensor,
    b13: Tensor | None = None,
    b2: Tensor | None = None,
    swiglu_limit: float = 0.0,
) -> Tensor:
    """The expert MLPs: `sum over k of weights[t, k] * (w2[e] @ swiglu(w13[e] @ x[t] + b13[e]) + b2[e])` with
    e = ids[t, k].

    x: `[T, d]`; w13: `[E, 2f, d]`, gate rows then up rows; w2: `[E, d, f]`; weights: `[T, k]` float32;
    ids: `[T, k]` int32; b13: `[E, 2f]` and b2: `[E, d]`, both or neither; swiglu_limit: above zero for
    `clamped_swiglu`. Returns `[T, d]` in x's dtype; sums are kept in float32.
    """
    tokens, top_k = ids.shape
    flat = ids.flatten().to(torch.int64)
    order = torch.argsort(flat, stable=True)
    gathered = x[order // top_k]
    products = torch.empty(tokens * top_k, x.shape[1], dtype=x.dtype, device=x.device)
    start = 0
    for expert, count in enumerate(torch.bincount(flat, minlength=w13.shape[0]).tolist()):
        if count:
            rows = gathered[start : start + count]
            both = F.linear(rows, w13[expert], None if b13 is None else b13[expert])
            hidden = clamped_swiglu(both, swiglu_limit) if swiglu_limit else swiglu(both)
            down = F.linear(hidden, w2[expert], None if b2 is None else b2[expert])
            products[start : start + count] = down
            start += count
    by_row = torch.empty_like(products)
    by_row[order] = products
    combined = torch.bmm(weights.float().unsqueeze(1), by_row.view(tokens, top_k, x.shape[1]).float())
    return combined.squeeze(1).to(x.dtype)
