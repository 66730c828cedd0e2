"""The rules of the algorithms, on logits made for the purpose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blis_py.errors import InputError
from blis_py.files.profiles import find_profile
from engine.diffusion.blocks import Algorithm, Blocks, Logits
from engine.diffusion.joint_threshold import JointThreshold
from engine.diffusion.low_confidence import LowConfidence
from engine.diffusion.settings import ALGORITHMS, dllm_settings, make_algorithm, mask_token
from engine.diffusion.top_k_per_step import TopKPerStep
from engine.kernels.denoise import best_tokens

VOCAB, MASK = 8, 7
_ = MASK


def blocks(ids: list[int], known: int = 0) -> Blocks:
    return Blocks(torch.tensor([ids]), torch.arange(len(ids))[None] >= known, MASK)


def probabilities(*rows: dict[int, float]) -> torch.Tensor:
    """Logits whose softmax gives these tokens these probabilities, the other tokens but the mask the rest."""
    values = []
    for row in rows:
        rest = (1 - sum(row.values())) / (VOCAB - 1 - len(row))
        values.append([max(row.get(token, rest), 1e-30) for token in range(VOCAB)])
    logits = torch.tensor(values).log()
    logits[:, MASK] = 50.0  # the model would rather say nothing
    return logits


def step(algorithm: Algorithm, state: Any, block: Blocks, *rows: dict[int, float]) -> bool:
    """One round, with logits for every position."""
    wanted = algorithm.needs_logits(block, state)
    where = wanted.view(-1).nonzero().view(-1)
    logits = Logits(probabilities(*rows)[where], where)
    return bool(algorithm.step(block, logits, state))


def test_low_confidence_takes_what_is_strictly_above_its_threshold() -> None:
    rows = ({1: 0.75}, {2: 0.5}, {3: 0.25})
    block = blocks([_, _, _])
    _tokens, confidence = best_tokens(block.ids, probabilities(*rows), torch.arange(3), MASK)
    assert confidence[0].tolist() == pytest.approx([0.75, 0.5, 0.25])
    assert not step(LowConfidence(confidence[0, 1].item()), {}, block, *rows)
    assert block.ids.tolist() == [[1, MASK, MASK]]


def test_low_confidence_takes_the_single_best_when_none_is_certain_and_the_first_of_equals() -> None:
    block, algorithm = blocks([_, _, _]), LowConfidence(0.95)
    assert not step(algorithm, {}, block, {1: 0.3}, {2: 0.4}, {3: 0.4})
    assert block.ids.tolist() == [[MASK, 2, MASK]]


def test_low_confidence_is_done_when_the_block_arrived_without_masks() -> None:
    block, algorithm = blocks([_, 5]), LowConfidence()
    assert not step(algorithm, {}, block, {1: 0.9}, {6: 0.99})
    assert block.ids.tolist() == [[1, 5]]  # what is there stays
    assert not algorithm.needs_logits(block, {}).any()


def test_joint_threshold_edits_while_masks_remain_and_never_the_prompt() -> None:
    block, algorithm = blocks([2, 3, _, _], known=1), JointThreshold()
    state = algorithm.init_step_state(block)
    assert not step(algorithm, state, block, {5: 0.9}, {6: 0.9}, {1: 0.6}, {4: 0.4})
    assert block.ids.tolist() == [[2, 6, 1, MASK]]
    assert state["post_edit_steps"].tolist() == [0]


def test_joint_threshold_is_done_with_the_first_round_that_changes_nothing() -> None:
    block, algorithm = blocks([1, 2]), JointThreshold()
    state = algorithm.init_step_state(block)
    assert not step(algorithm, state, block, {1: 0.9}, {3: 0.9})
    assert step(algorithm, state, block, {1: 0.9}, {3: 0.9})
    assert state["post_edit_steps"].tolist() == [2]


def test_joint_threshold_stops_editing_after_so_many_rounds_without_masks() -> None:
    block, algorithm = blocks([1]), JointThreshold(max_post_edit_steps=3)
    state = algorithm.init_step_state(block)
    for token in (2, 3, 4):
        assert not step(algorithm, state, block, {token: 0.9})
    assert step(algorithm, state, block, {5: 0.9})
    assert block.ids.tolist() == [[4]]


def test_joint_threshold_leaves_what_is_below_its_edit_threshold() -> None:
    block, algorithm = blocks([1, _]), JointThreshold(edit_threshold=0.6)
    state = algorithm.init_step_state(block)
    step(algorithm, state, block, {2: 0.55}, {3: 0.9})
    assert block.ids.tolist() == [[1, 3]]


def test_the_penalty_speaks_against_the_token_before() -> None:
    for penalty, second in ((0.0, 4), (2.0, 3)):
        block, algorithm = blocks([4, _]), JointThreshold(edit_threshold=1.0, penalty_lambda=penalty)
        step(algorithm, algorithm.init_step_state(block), block, {4: 0.9}, {4: 0.5, 3: 0.3})
        assert block.ids.tolist() == [[4, second]]


def test_top_k_per_step_takes_a_fixed_number() -> None:
    block, algorithm = blocks([_, _, _, 6]), TopKPerStep(2)
    assert not step(algorithm, {}, block, {1: 0.3}, {2: 0.9}, {3: 0.4}, {0: 0.9})
    assert block.ids.tolist() == [[MASK, 2, 3, 6]]
    assert not step(algorithm, {}, block, {1: 0.3}, {0: 0.9}, {0: 0.4}, {0: 0.9})
    assert block.ids.tolist() == [[1, 2, 3, 6]]


@given(seed=st.integers(0, 10**6), name=st.sampled_from(sorted(ALGORITHMS)), known=st.integers(0, 7))
def test_every_block_is_done_within_the_bound_whatever_the_model_says(
    seed: int, name: str, known: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    algorithm = ALGORITHMS[name]()
    prompt = torch.randint(VOCAB, (3, known), generator=generator)  # mask tokens among them
    ids = torch.cat((prompt, torch.full((3, 8 - known), MASK)), dim=1)
    block = Blocks(ids, (torch.arange(8) >= known).repeat(3, 1), MASK)
    state, done = algorithm.init_step_state(block), torch.zeros(3, dtype=torch.bool)
    for _round in range(algorithm.max_rounds(8)):
        rows = algorithm.needs_logits(block, state).view(-1).nonzero().view(-1)
        before = block.ids.clone()
        if not len(rows):
            done[:] = True
            break
        logits = 3 * torch.randn(len(rows), VOCAB, generator=generator)
        logits[torch.rand(len(rows), generator=generator) < 0.2, MASK] = 9.0
        done = algorithm.step(block, Logits(logits, rows), state)
        assert torch.equal(done, (block.ids == before).all(dim=1))
        if done.all():
            break
    assert done.all()
    assert not block.masked.any()
    assert torch.equal(block.ids[:, :known], prompt)


def test_every_algorithm_goes_with_every_mode(tmp_path: Path) -> None:
    file = tmp_path / "dllm.yaml"
    file.write_text("threshold: 0.8\n")
    for fdfo in (True, False):
        for name in ("LowConfidence", "JointThreshold"):
            settings = dllm_settings(name, file, fdfo=fdfo)
            assert settings.algorithm.threshold == 0.8  # type: ignore[attr-defined]
            assert settings.core(32).fdfo is fdfo
        assert dllm_settings("TopKPerStep", fdfo=fdfo).algorithm == TopKPerStep()


@pytest.mark.parametrize(
    ("name", "values", "key"),
    [
        ("Wild", {}, "--dllm-algorithm"),
        ("LowConfidence", {"treshold": 1}, "treshold"),
        ("LowConfidence", {"threshold": 1.5}, "threshold"),
        ("LowConfidence", {"threshold": True}, "threshold"),
        ("JointThreshold", {"max_post_edit_steps": 1.5}, "max_post_edit_steps"),
        ("JointThreshold", {"penalty_lambda": -1}, "penalty_lambda"),
        ("TopKPerStep", {"tokens_per_step": 0}, "tokens_per_step"),
    ],
)
def test_bad_algorithms_and_parameters_are_refused_by_name(
    name: str, values: dict[str, Any], key: str
) -> None:
    with pytest.raises(InputError) as refusal:
        make_algorithm(name, values)
    assert refusal.value.key == key


def test_the_mask_token_comes_from_the_model_and_an_autoregressive_one_has_none() -> None:
    assert mask_token("llada2.0-mini") == 156895
    with pytest.raises(InputError, match="not a block-diffusion model"):
        mask_token("qwen3-0.6b")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"block_diffusion": None}, None),
        ({"mask_token_id": 7}, None),
        ({"mask_token_id": True}, "missing or not a token"),
        ({"mask_token_id": -1}, "missing or not a token"),
        ({"mask_token_id": [7]}, "missing or not a token"),
        ({"block_diffusion": {"block_size": 32, "mask_token_id": 10**9}}, "missing or not a token"),
        ({"block_diffusion": []}, None),
        ({"block_diffusion": [1]}, "block_diffusion: must be an object"),
    ],
)
def test_a_mask_token_that_is_none_is_refused(
    tmp_path: Path, changes: dict[str, Any], problem: str | None
) -> None:
    values = json.loads(find_profile("models", "llada2.0-mini").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | changes))
    if problem is None:
        assert mask_token(tmp_path) == changes.get("mask_token_id", 156895)
    else:
        with pytest.raises(InputError, match=problem):
            mask_token(tmp_path)
