"""The CUDA C++ denoise kernel, run on the CPU, decides as its reference does."""

from __future__ import annotations

import pytest
import torch
from cuda_on_cpu import cuda_on_cpu

from engine.kernels import backend
from engine.kernels.denoise import Rule, denoise

MASK = 3
RULES = [
    Rule(0.5),
    Rule(2.0, at_least=5),
    Rule(0.0),
    Rule(0.3, edit_threshold=0.1, max_edit_rounds=2),
    Rule(0.3, edit_threshold=0.0, max_edit_rounds=1, penalty=1.5),
]
Tensor = torch.Tensor


def case(rule: Rule, blocks: int, size: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ids, answer, logits and rows; the last block has no masks left, and some logits are equal."""
    generator = torch.Generator().manual_seed(blocks * size + vocabulary)
    ids = torch.randint(vocabulary, (blocks, size), generator=generator)
    ids[torch.rand(ids.shape, generator=generator) < 0.5] = MASK
    ids[-1] = 7
    answer = torch.arange(size).repeat(blocks, 1) >= torch.randint(size, (blocks, 1), generator=generator)
    wanted = answer if rule.edit_threshold is not None else answer & (ids == MASK)
    rows = wanted.view(-1).nonzero().view(-1)
    logits = 4 * torch.randn(len(rows), vocabulary, generator=generator)
    logits[:, MASK] += 20
    if len(rows) > 2:
        logits[2] = logits[1]
        logits[0, 9] = logits[0, vocabulary - 5] = 30.0
    return ids, answer, logits, rows


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize(
    ("blocks", "size", "vocabulary"), [(1, 32, 301), (3, 32, 2052), (2, 4, 300), (2, 48, 61), (2, 100, 64)]
)
def test_the_kernel_agrees_with_the_reference(rule: Rule, blocks: int, size: int, vocabulary: int) -> None:
    ids, answer, logits, rows = case(rule, blocks, size, vocabulary)
    expected, rounds = ids.clone(), torch.arange(blocks, dtype=torch.int32)
    with backend.force("reference"):
        done = denoise(expected, answer, logits.clone(), rows, MASK, rule, rounds)
    mine, counted = ids.clone(), torch.arange(blocks, dtype=torch.int32)
    with cuda_on_cpu():
        over = denoise(mine, answer, logits, rows, MASK, rule, counted)
    assert torch.equal(mine, expected)
    assert torch.equal(over, done)
    assert torch.equal(counted, rounds)
    assert not torch.equal(mine, ids) or over.all()


def test_without_logits_every_block_without_masks_is_done() -> None:
    ids = torch.full((2, 32), 9)
    with cuda_on_cpu():
        over = denoise(
            ids, ids > 0, torch.zeros(0, 64), torch.zeros(0, dtype=torch.int64), MASK, Rule(0.9), None
        )
    assert over.tolist() == [True, True]
    assert (ids == 9).all()


def test_a_row_without_any_finite_logit_takes_token_0() -> None:
    ids = torch.tensor([[5, MASK]])
    logits = torch.full((1, 64), -torch.inf)
    with cuda_on_cpu():
        over = denoise(ids, torch.tensor([[False, True]]), logits, torch.tensor([1]), MASK, Rule(0.9), None)
    assert (ids.tolist(), over.tolist()) == ([[5, 0]], [False])
