"""The denoise kernel agrees with its reference, under Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import backend
from engine.kernels.denoise import Rule, denoise

MASK, VOCAB = 3, 300
RULES = (
    Rule(0.5),
    Rule(2.0, at_least=5),
    Rule(0.0),
    Rule(0.3, edit_threshold=0.1, max_edit_rounds=2),
    Rule(0.3, edit_threshold=0.0, max_edit_rounds=1, penalty=1.5),
)


@pytest.mark.skipif(torch.cuda.is_available(), reason="runs on the device there")
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize(("blocks", "size"), [(1, 32), (5, 32), (2, 4)])
def test_the_triton_kernel_agrees_with_the_reference(rule: Rule, blocks: int, size: int) -> None:
    generator = torch.Generator().manual_seed(RULES.index(rule))
    ids = torch.randint(VOCAB, (blocks, size), generator=generator)
    ids[torch.rand(ids.shape, generator=generator) < 0.5] = MASK
    ids[-1] = 7  # no masks left
    answer = torch.arange(size).repeat(blocks, 1) >= torch.randint(size, (blocks, 1), generator=generator)
    wanted = answer if rule.edit_threshold is not None else answer & (ids == MASK)
    rows = wanted.view(-1).nonzero().view(-1)
    logits = 4 * torch.randn(len(rows), VOCAB, generator=generator)
    logits[:, MASK] += 20
    if len(rows) > 2:
        logits[2] = logits[1]  # ties
        logits[0, 9] = logits[0, 250] = 30.0
    results = []
    for name in ("reference", "triton"):
        mine, rounds = ids.clone(), torch.arange(blocks, dtype=torch.int32)
        with backend.force(name):
            done = denoise(mine, answer, logits.clone(), rows, MASK, rule, rounds)
        results.append((mine, rounds, done))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(results[0][0], ids) or bool(results[0][2].all())
