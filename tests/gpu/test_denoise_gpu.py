"""The denoise kernels on a GPU decide as the reference does, with the vocabulary of LLaDA2.0-mini."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import backend
from engine.kernels.denoise import Rule, denoise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MASK, VOCAB = 156895, 157184
RULES = [Rule(0.5), Rule(2.0, at_least=5), Rule(0.3, edit_threshold=0.1, max_edit_rounds=2, penalty=1.5)]


@pytest.mark.parametrize("name", ["cuda", "triton"])
@pytest.mark.parametrize("blocks", [1, 16, 64])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_kernels_agree_with_the_reference(name: str, blocks: int, rule: Rule) -> None:
    torch.manual_seed(blocks)
    ids = torch.randint(VOCAB, (blocks, 32), device="cuda")
    ids[torch.rand(ids.shape, device="cuda") < 0.5] = MASK
    answer = torch.arange(32, device="cuda").repeat(blocks, 1) >= 5
    wanted = answer if rule.edit_threshold is not None else answer & (ids == MASK)
    rows = wanted.view(-1).nonzero().view(-1)
    logits = torch.randn(len(rows), VOCAB, device="cuda")
    favourites = torch.randint(VOCAB, (len(rows), 1), device="cuda")
    sure = 8 + 6 * torch.rand(len(rows), 1, device="cuda")  # probabilities from 0.01 to 0.8, all different
    logits.scatter_(1, favourites, sure)
    results = []
    for implementation in ("reference", name):
        mine, rounds = ids.clone(), torch.arange(blocks, dtype=torch.int32, device="cuda")
        with backend.force(implementation):
            done = denoise(mine, answer, logits.clone(), rows, MASK, rule, rounds)
        results.append((mine, rounds, done))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
