"""One denoise round of many blocks: best tokens, which of them to take, who is done."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.kernels.op import op

Tensor = torch.Tensor
MAX_POSITIONS = 128
"""Most positions of a block for the CUDA C++ kernel; the Triton kernel takes any."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Acceptance rule of best tokens. A position's confidence is the probability of its best token.

    threshold: masked positions with a confidence strictly above it accept their token.
    at_least: as do this many of the most confident masked positions of each block in any case; ties: the
    first position.
    edit_threshold: positions already filled, prompt excepted, change to another best token whose
        confidence is above it; None = never.
    max_edit_rounds: rounds in which a block without masks may still change.
    penalty: subtracted from a position's logit of the token preceding it in the block.
    """

    threshold: float
    at_least: int = 1
    edit_threshold: float | None = None
    max_edit_rounds: int = 0
    penalty: float = 0.0


def best_tokens(
    ids: Tensor, logits: Tensor, rows: Tensor, mask_id: int, penalty: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Most likely token of each position and its probability, excluding the mask id.

    Args:
        ids: `[B, L]`; logits: `[R, V]`, overwritten; rows: `[R]`, as in `engine.kernels.denoise.denoise`.

    Returns:
        tokens `[B, L]` int64, confidence `[B, L]` float32; for positions without logits their own token and
        minus infinity.
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
    """`[B, L]` bool: the `count` highest of each row; ties: the first position."""
    order = confidence.sort(dim=1, descending=True, stable=True).indices
    rank = torch.arange(confidence.shape[1], device=order.device).expand_as(order)
    return torch.zeros_like(order).scatter(1, order, rank) < count


def _check(
    ids: Tensor,
    answer: Tensor,
    logits: Tensor,
    rows: Tensor,
    mask_id: int,
    rule: Rule,
    edit_rounds: Tensor | None = None,
) -> None:
    if rule.edit_threshold is not None and edit_rounds is None:
        raise ValueError("a rule with edits counts its rounds: give edit_rounds")


@op("cuda", "triton", check=_check)
def denoise(
    ids: Tensor,
    answer: Tensor,
    logits: Tensor,
    rows: Tensor,
    mask_id: int,
    rule: Rule,
    edit_rounds: Tensor | None = None,
) -> Tensor:
    """Apply a rule to B blocks of L positions without synchronising with the device.

    The mask id is never a candidate, so every round fills at least one masked position. A block whose
    ids do not change is done: the forward that gave these logits has written its final keys and values.

    Args:
        ids: `[B, L]` int64, contiguous, changed in place.
        answer: `[B, L]` bool, false at positions of the prompt, which never change and are never masked
            whatever token they hold.
        logits: `[R, V]` float32, may be overwritten.
        rows: `[R]` int64, the position `block * L + offset` of each row; all masked positions are among them,
            and with edits all of the answer's.
        edit_rounds: `[B]` int32, rounds that found no masks, counted in place; needed with edits.

    Returns:
        `[B]` bool: which blocks are done.
    """
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
