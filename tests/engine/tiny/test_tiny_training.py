from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from engine.tiny.tasks import MAX_TOKENS, TASKS, make, task_of  # noqa: E402
from engine.tiny.vocab import EOS, MASK, VOCAB_SIZE, encode  # noqa: E402
from training import autoregressive, diffusion  # noqa: E402
from training.model import Qwen3, Shape, load, save  # noqa: E402
from training.muon import orthogonalize  # noqa: E402
from training.packing import IGNORE, Example, pack  # noqa: E402
from training.train import KINDS, evaluate, token_losses, train  # noqa: E402

BLOCK = diffusion.BLOCK


def random_model(shape: Shape | None = None) -> Qwen3:
    """Weights far from the initialisation, so that every term of the architecture shows in the logits."""
    model, generator = Qwen3(shape), torch.Generator().manual_seed(7)
    for weight in model.parameters():
        weight.data = torch.randn(weight.shape, generator=generator) * 0.2 + (weight.dim() == 1)
    return model.eval()


def weight_bytes(model: Qwen3, folder: Path) -> bytes:
    save(model, folder)
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_twenty_steps_lower_the_loss_and_a_second_run_gives_the_same_bytes(kind: str, tmp_path: Path) -> None:
    one_each = dict.fromkeys(TASKS, 1)
    losses = train(kind, steps=20, seed=3, batch=one_each)[1]
    assert sum(losses[-5:]) / 5 < 0.9 * losses[0]
    one, other = (train(kind, steps=3, seed=3, batch=one_each)[0] for _ in range(2))
    assert weight_bytes(one, tmp_path / "a") == weight_bytes(other, tmp_path / "b")


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    first, second = (train("ar", steps=1, seed=seed, batch={"sort": 1})[0] for seed in (0, 1))
    assert weight_bytes(first, tmp_path / "a") != weight_bytes(second, tmp_path / "b")


@pytest.mark.parametrize("shape", [Shape(), Shape(layers=2, heads=6, kv_heads=3, head_dim=16, ffn=100)])
def test_the_exported_folder_gives_the_logits_of_transformers(shape: Shape, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = random_model(shape)
    save(model, tmp_path)
    theirs = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ids = torch.randint(VOCAB_SIZE, (2, 70), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        ours, expected = model.logits(model(ids)), theirs(ids).logits
    torch.testing.assert_close(ours, expected, atol=1e-3, rtol=1e-3)
    assert theirs.generation_config.eos_token_id == EOS


def test_a_saved_model_is_the_model_that_is_loaded(tmp_path: Path) -> None:
    model = random_model(Shape(layers=1, hidden=64))
    save(model, tmp_path, diffusion.CONFIG)
    ids = torch.arange(40)[None]
    assert torch.equal(model(ids), load(tmp_path)(ids))


@torch.inference_mode()
@pytest.mark.parametrize("mask_block", [1, BLOCK])
def test_a_position_attends_to_its_own_block_and_earlier_ones_only(mask_block: int) -> None:
    model, changed_at = random_model(), 40
    ids = torch.randint(256, (1, 80), generator=torch.Generator().manual_seed(2))
    changed = ids.clone()
    changed[0, changed_at] += 1
    differs = (model(ids, mask_block) != model(changed, mask_block)).any(-1)[0]
    first = changed_at // mask_block * mask_block
    assert not differs[:first].any()
    assert differs[first:].all()


def test_only_answers_and_their_eos_are_learned() -> None:
    example = autoregressive.example("copy: ab -> ", "ab", Random(0))
    row = [*encode("copy: ab -> ab"), EOS]
    assert example.ids == row[:-1]
    assert example.labels == [IGNORE] * 11 + row[-3:]


@torch.inference_mode()
@pytest.mark.parametrize("kind", list(KINDS))
def test_packed_examples_lose_what_they_lose_alone(kind: str) -> None:
    rng, objective, model = Random(5), KINDS[kind], random_model()
    examples = [objective.example(*make(rng, task), rng) for task in TASKS for _ in range(2)]
    losses, owners = token_losses(model, pack(examples, MAX_TOKENS), objective.MASK_BLOCK)
    for index, example in enumerate(examples):
        hidden = model(torch.tensor([example.ids]), objective.MASK_BLOCK)[0]
        alone = F.cross_entropy(
            model.logits(hidden), torch.tensor(example.labels), ignore_index=IGNORE, reduction="none"
        )
        kept = torch.tensor(example.labels) != IGNORE
        torch.testing.assert_close(losses[owners == index], alone[kept], atol=1e-4, rtol=1e-4)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30))
def test_packing_keeps_every_example_whole_and_wastes_little(lengths: list[int]) -> None:
    examples = [Example([i] * length, [length] * length) for i, length in enumerate(lengths)]
    batch = pack(examples, 20)
    for i, example in enumerate(examples):
        (row,) = set((batch.documents == i).nonzero()[:, 0].tolist())
        here = batch.documents[row] == i
        assert batch.ids[row, here].tolist() == example.ids
        assert batch.labels[row, here].tolist() == example.labels
        assert batch.positions[row, here].tolist() == list(range(len(example.ids)))
    assert int((batch.documents >= 0).sum()) == sum(lengths)
    used = (batch.documents >= 0).sum(1)
    assert len(used) < 2 or sum(sorted(used.tolist())[:2]) > 20  # no two rows would fit into one


def test_greedy_answers_do_not_depend_on_the_batch() -> None:
    model, _ = train("ar", steps=2, seed=0)
    prompts = [make(Random(i))[0] for i in range(4)]
    together = autoregressive.generate(model, prompts, max_tokens=60)
    assert together == [autoregressive.generate(model, [prompt], max_tokens=60)[0] for prompt in prompts]


@pytest.mark.parametrize("shape", [(3, 64, 128), (2, 128, 64), (1, 32, 32)])
def test_muon_sets_all_singular_values_to_about_one_and_keeps_the_directions(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    made = orthogonalize(matrices)
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.3
    assert values.max() < 1.3
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    aligned = (u.mT @ made @ v.mT).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(aligned.sort(descending=True).values, values, atol=0.05, rtol=0.0)


@given(seed=st.integers(0, 2**32))
def test_a_diffusion_example_ends_with_one_block_of_the_answer_and_hides_only_tokens_of_it(seed: int) -> None:
    rng = Random(seed)
    prompt, answer = make(rng)
    example = diffusion.example(prompt, answer, rng)
    whole = [*encode(prompt), *encode(answer), EOS]
    whole += [EOS] * (-len(whole) % BLOCK)
    hidden = [i for i, token in enumerate(example.ids) if token == MASK]
    assert len(example.ids) % BLOCK == 0
    assert hidden
    assert min(hidden) >= max(len(encode(prompt)), len(example.ids) - BLOCK)
    for i, (token, label, clean) in enumerate(zip(example.ids, example.labels, whole, strict=False)):
        assert (token, label) == ((MASK, clean) if i in hidden else (clean, IGNORE))


def test_low_confidence_takes_what_is_sure_or_else_the_single_best_and_never_the_mask() -> None:
    block = torch.tensor([MASK, 5, MASK, MASK])
    logits = torch.zeros(4, VOCAB_SIZE)
    logits[:, MASK] = 99.0
    logits[0, 10], logits[1, 11], logits[2, 12], logits[3, 13] = 20.0, 30.0, 20.0, 2.0
    assert diffusion.unmask(block, logits.clone()).tolist() == [10, 5, 12, MASK]
    logits[0, 10] = logits[2, 12] = 1.0
    assert diffusion.unmask(block, logits).tolist() == [MASK, 5, MASK, 13]


def test_diffusion_decoding_ends_even_when_nothing_is_learned() -> None:
    model = random_model(Shape(layers=1, hidden=64))
    for prompt in ("", "x" * 31, "x" * 32, "x" * 33):
        _, rounds = diffusion.generate(model, prompt)
        assert rounds
        assert all(1 <= count <= BLOCK for count in rounds)


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_evaluation_counts_right_answers_per_task(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def half_right(model: Qwen3, prompts: list[str]):
        return [TASKS[task_of(p)].solve(p) if i % 2 else "?" for i, p in enumerate(prompts)], {}

    monkeypatch.setattr(KINDS[kind], "evaluate", half_right)
    report = evaluate(kind, random_model(Shape(layers=1)), seed=0, problems=4)
    assert report["accuracy"] == dict.fromkeys(TASKS, 0.5)
