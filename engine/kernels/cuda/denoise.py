"""A denoise round by the CUDA C++ kernel."""

from __future__ import annotations

import torch

from engine.kernels.cuda import library
from engine.kernels.denoise import MOST_POSITIONS, Rule
from engine.kernels.triton.denoise import denoise as triton_denoise

Tensor = torch.Tensor


def denoise(
    ids: Tensor,
    answer: Tensor,
    logits: Tensor,
    rows: Tensor,
    mask_id: int,
    rule: Rule,
    edit_rounds: Tensor | None = None,
) -> Tensor:
    """See `engine.kernels.denoise.denoise`; the logits are not modified."""
    blocks, positions = ids.shape
    if positions > MOST_POSITIONS:
        return triton_denoise(ids, answer, logits, rows, mask_id, rule, edit_rounds)
    device = ids.device
    tokens = torch.empty(ids.shape, dtype=torch.int64, device=device)
    confidence = torch.empty(ids.shape, dtype=torch.float32, device=device)
    ticket = torch.zeros(1, dtype=torch.int32, device=device)
    done = torch.empty(blocks, dtype=torch.bool, device=device)
    edits = rule.edit_threshold is not None
    answer, logits, rows = answer.contiguous(), logits.contiguous(), rows.contiguous()
    library.launch(
        "blis_denoise",
        device,
        library.pointer(ids, torch.int64),
        library.pointer(answer, torch.bool),
        library.pointer(logits, torch.float32),
        library.pointer(rows, torch.int64),
        tokens.data_ptr(),
        confidence.data_ptr(),
        ticket.data_ptr(),
        library.pointer(edit_rounds, torch.int32) if edits and edit_rounds is not None else None,
        done.data_ptr(),
        len(rows),
        blocks,
        positions,
        logits.shape[1],
        logits.stride(0),
        mask_id,
        rule.threshold,
        rule.at_least,
        int(edits),
        0.0 if rule.edit_threshold is None else rule.edit_threshold,
        rule.max_edit_rounds,
        rule.penalty,
    )
    return done
