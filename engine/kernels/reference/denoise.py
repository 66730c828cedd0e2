"""A denoise round in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from engine.kernels.denoise import Rule

Tensor = torch.Tensor


def best_tokens(
    ids: Tensor, logits: Tensor, rows: Tensor, mask_id: int, penalty: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Most likely token of each position and its probability, the mask id left out.

    Args:
        ids: `[B, L]`; logits: `[R, V]`, overwritten; rows: `[R]`, as in `engine.kernels.denoise.denoise`.

    Returns:
        tokens `[B, L]` int64, confidence `[B, L]` float32; where there are no logits the position's own
        token and minus infinity.
    """
    logits[:, mask_id] = -torch.inf
    if penalty:
        before = ids.roll(1, dims=1).view(-1).index_select(0, rows).unsqueeze(1)
        first = (rows % ids.shape[1] == 0).unsqueeze(1)
        logits.scatter_add_(1, before, torch.where(first, 0.0, -penalty).to(logits.dtype))
    highest, best = logits.max(dim=-1)
    probability = (highest - logits.logsumexp(dim=-1)).exp()
    tokens = ids.reshape(-1).index_copy(0, rows, best)
    confidence = torch.full_like(tokens, -torch.inf, dtype=torch.float32).index_copy(0, rows, probability)
    return tokens.view_as(ids), confidence.view_as(ids)


def most_confident(confidence: Tensor, count: int) -> Tensor:
    """`[B, L]` bool: the `count` highest of each row; among equals the first."""
    order = confidence.sort(dim=1, descending=True, stable=True).indices
    rank = torch.arange(confidence.shape[1], device=order.device).expand_as(order)
    return torch.zeros_like(order).scatter(1, order, rank) < count


def denoise(
    ids: Tensor,
    answer: Tensor,
    logits: Tensor,
    rows: Tensor,
    mask_id: int,
    rule: Rule,
    edit_rounds: Tensor | None,
) -> Tensor:
    """See `engine.kernels.denoise.denoise`."""
    tokens, confidence = best_tokens(ids, logits, rows, mask_id, rule.penalty)
    masked = (ids == mask_id) & answer
    candidates = confidence.masked_fill(~masked, -torch.inf)
    change = masked & ((confidence > rule.threshold) | most_confident(candidates, rule.at_least))
    if rule.edit_threshold is not None:
        assert edit_rounds is not None
        full = ~masked.any(dim=1)
        edit_rounds += full
        edits = answer & ~masked & (tokens != ids) & (confidence > rule.edit_threshold)
        exhausted = full & (edit_rounds > rule.max_edit_rounds)
        change |= edits & ~exhausted.unsqueeze(1)
    ids.copy_(torch.where(change, tokens, ids))
    return ~change.any(dim=1)
