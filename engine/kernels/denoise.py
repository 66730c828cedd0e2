"""One denoise round of many diffusion blocks: best tokens, which of them to take, who is done."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.kernels import backend
from engine.kernels.reference import denoise as reference

Tensor = torch.Tensor
MOST_POSITIONS = 128
"""Of a diffusion block that the CUDA C++ kernel can hold; the Triton kernel takes any."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Which positions take their best token. A position's confidence is that token's probability.

    threshold: masked positions with a confidence above it (strictly) take their token.
    at_least: and the so many most confident masked ones of each block in any case; ties: the first position.
    edit_threshold: positions already filled, prompt excepted, change to another best token whose
        confidence is above it; None = never.
    max_edit_rounds: rounds in which a block without masks may still change.
    penalty: subtracted from a position's logit of the token that stands before it in the block.
    """

    threshold: float
    at_least: int = 1
    edit_threshold: float | None = None
    max_edit_rounds: int = 0
    penalty: float = 0.0


def denoise(
    ids: Tensor,
    answer: Tensor,
    logits: Tensor,
    rows: Tensor,
    mask_id: int,
    rule: Rule,
    edit_rounds: Tensor | None = None,
) -> Tensor:
    """Apply a rule to B blocks of L positions; nothing waits for the device.

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
    if rule.edit_threshold is not None and edit_rounds is None:
        raise ValueError("a rule with edits counts its rounds: give edit_rounds")
    if backend.choose(ids) == "reference":
        return reference.denoise(ids, answer, logits, rows, mask_id, rule, edit_rounds)
    if backend.choose_cuda(ids) == "cuda" and ids.shape[1] <= MOST_POSITIONS:
        from engine.kernels.cuda import denoise as compiled

        return compiled.denoise(ids, answer, logits, rows, mask_id, rule, edit_rounds)
    from engine.kernels.triton import denoise as kernel

    return kernel.denoise(ids, answer, logits, rows, mask_id, rule, edit_rounds)
