"""A denoise round in one kernel: a program per row of logits, and the last to finish decides for all blocks.

Each program reads its row once, keeping maximum, index and softmax mass per lane. It then draws a ticket: the
program with the last ticket sees all best tokens written, and applies the rule to every block. The logits are
by far the most of the work, so a serial tail of one program costs little.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from engine.kernels.promise import Promise

if TYPE_CHECKING:
    from engine.kernels.denoise import Rule

Tensor = torch.Tensor
BLOCK_V = 4096
WARPS = 8


@triton.jit
def _best(logits, vocabulary, mask_id, before, penalty, BLOCK_V: tl.constexpr):
    """The most likely token of a row of logits and its probability, excluding the mask id.

    `penalty`, if any, is subtracted from the logit of the token `before` it.
    """
    lanes = tl.arange(0, BLOCK_V)
    high = tl.full((BLOCK_V,), float("-inf"), tl.float32)
    mass = tl.zeros((BLOCK_V,), tl.float32)
    index = tl.zeros((BLOCK_V,), tl.int32)
    for start in range(0, vocabulary, BLOCK_V):
        columns = start + lanes
        allowed = (columns < vocabulary) & (columns != mask_id)
        z = tl.load(logits + columns, mask=allowed, other=float("-inf"))
        if penalty is not None:
            z = tl.where(columns == before, z - penalty, z)
        higher = tl.maximum(high, z)
        grown = mass * tl.exp(high - higher) + tl.exp(z - higher)
        mass = tl.where(higher == float("-inf"), 0.0, grown)
        index = tl.where(z > high, columns, index)
        high = higher
    top = tl.max(high, axis=0)
    best = tl.min(tl.where(high == top, index, vocabulary), axis=0)
    total = tl.sum(tl.where(high == float("-inf"), 0.0, mass * tl.exp(high - top)), axis=0)
    return best, 1.0 / total


@triton.jit
def _ahead(confidence):
    """Rank of each of `[L]` by falling confidence; ties: the first position."""
    positions = tl.arange(0, confidence.shape[0])
    mine, theirs = confidence[:, None], confidence[None, :]
    earlier = positions[None, :] < positions[:, None]
    return tl.sum(((theirs > mine) | ((theirs == mine) & earlier)).to(tl.int32), axis=1)


@triton.jit
def _fill(
    block,
    ids,
    answer,
    tokens,
    confidence,
    edit_rounds,
    done,
    mask_id,
    threshold,
    edit_threshold,
    max_edit_rounds,
    L: tl.constexpr,
    AT_LEAST: tl.constexpr,
):
    """Apply the rule to a block whose best tokens are known."""
    positions = tl.arange(0, triton.next_power_of_2(L))
    places = block * L + positions
    inside = positions < L
    old = tl.load(ids + places, mask=inside, other=-1)
    open_ = tl.load(answer + places, mask=inside, other=0) != 0
    masked = open_ & (old == mask_id)
    needed = masked
    if edit_rounds is not None:
        needed = open_
    new = tl.load(tokens + places, mask=needed, other=0, cache_modifier=".cg")
    sure = tl.load(confidence + places, mask=needed, other=float("-inf"), cache_modifier=".cg")
    candidates = tl.where(masked, sure, float("-inf"))
    change = masked & ((candidates > threshold) | (_ahead(candidates) < AT_LEAST))
    if edit_rounds is not None:
        full = (tl.sum(masked.to(tl.int32), axis=0) == 0).to(tl.int32)
        rounds = tl.load(edit_rounds + block) + full
        tl.store(edit_rounds + block, rounds)
        exhausted = full * (rounds > max_edit_rounds).to(tl.int32)
        edits = open_ & (masked == 0) & (new != old) & (sure > edit_threshold) & (exhausted == 0)
        change = change | edits
    tl.store(ids + places, new, mask=change)
    tl.store(done + block, (tl.sum(change.to(tl.int32), axis=0) == 0).to(tl.uint8))


@triton.jit(do_not_specialize=["num_rows", "num_blocks", "mask_id", "max_edit_rounds"])
def _denoise(
    ids,
    answer,
    logits,
    rows,
    tokens,
    confidence,
    tickets,
    edit_rounds,
    done,
    num_rows,
    num_blocks,
    vocabulary,
    mask_id,
    threshold,
    edit_threshold,
    penalty,
    max_edit_rounds,
    L: tl.constexpr,
    AT_LEAST: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One program per row; `edit_rounds` is None without edits, `penalty` without a penalty."""
    row = tl.program_id(0).to(tl.int64)
    if row < num_rows:
        place = tl.load(rows + row)
        before = -1
        if penalty is not None:
            before = tl.load(ids + place - 1, mask=place % L > 0, other=-1)
        best, sure = _best(logits + row * vocabulary, vocabulary, mask_id, before, penalty, BLOCK_V)
        tl.store(tokens + place, best.to(tl.int64))
        tl.store(confidence + place, sure)
    tl.debug_barrier()
    ticket = tl.atomic_add(tickets, 1, sem="acq_rel")
    if ticket == tl.num_programs(0) - 1:
        for block in range(0, num_blocks):
            _fill(
                block,
                ids,
                answer,
                tokens,
                confidence,
                edit_rounds,
                done,
                mask_id,
                threshold,
                edit_threshold,
                max_edit_rounds,
                L,
                AT_LEAST,
            )


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
    tokens = torch.empty(ids.shape, dtype=torch.int64, device=ids.device)
    confidence = torch.empty(ids.shape, dtype=torch.float32, device=ids.device)
    done = torch.empty(blocks, dtype=torch.uint8, device=ids.device)
    _denoise[(max(len(rows), 1),)](
        ids,
        answer.contiguous().view(torch.uint8),
        logits.contiguous(),
        rows,
        tokens,
        confidence,
        torch.zeros(1, dtype=torch.int32, device=ids.device),
        edit_rounds if rule.edit_threshold is not None else None,
        done,
        len(rows),
        blocks,
        logits.shape[1],
        mask_id,
        float(rule.threshold),
        0.0 if rule.edit_threshold is None else float(rule.edit_threshold),
        float(rule.penalty) if rule.penalty > 0 else None,
        rule.max_edit_rounds,
        L=positions,
        AT_LEAST=rule.at_least,
        BLOCK_V=min(BLOCK_V, triton.next_power_of_2(logits.shape[1])),
        num_warps=WARPS,
    )
    return done.view(torch.bool)


def promise(kernel: str, constants: Mapping[str, Any]) -> Promise:
    """See `engine.kernels.aot`."""
    return Promise(max_registers=128)
