"""The committed checkpoints answer what their training recorded."""

from __future__ import annotations

import json
import math
from random import Random

import pytest

torch = pytest.importorskip("torch")

from chance import fewest_right  # noqa: E402

from engine.tiny import CHECKPOINTS, checkpoint  # noqa: E402
from engine.tiny.tasks import TASKS, check, make  # noqa: E402
from engine.tiny.vocab import EOS, MASK, encode  # noqa: E402
from training.model import load  # noqa: E402
from training.train import KINDS  # noqa: E402

PROBLEMS = {"ar": 30, "diffusion": 12}  # of each task
MINIMUM = {"ar": 0.95, "diffusion": 0.85}  # of the recorded accuracies: arithmetic is hard to denoise


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_committed_model_is_as_good_as_recorded_on_problems_it_has_never_seen(kind: str) -> None:
    folder, problems = checkpoint(kind), PROBLEMS[kind]
    training = json.loads((folder / "training.json").read_text())
    model = load(folder)
    for task in TASKS:
        recorded = training["accuracy"][task]
        assert recorded > MINIMUM[kind]
        n = training["problems_per_task"]
        accuracy = (recorded * n + 1) / (n + 2)  # what is recorded is itself a sample
        rng = Random(f"fresh {task}")
        prompts = [make(rng, task)[0] for _ in range(problems)]
        answers, _ = KINDS[kind].evaluate(model, prompts)
        assert sum(map(check, prompts, answers)) >= fewest_right(accuracy, problems), task


def test_transformers_reads_the_committed_model_and_greedily_gives_right_answers() -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.Qwen3ForCausalLM.from_pretrained(checkpoint("ar"), dtype=torch.float32).eval()
    rng, right, problems = Random("read by transformers"), 0, 5
    for task in TASKS:
        for prompt, _ in (make(rng, task) for _ in range(problems)):
            ids = torch.tensor([encode(prompt)])
            mask = torch.ones_like(ids)
            output = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=60)
            answer = output[0, ids.shape[1] :].tolist()
            right += answer[-1] == EOS and check(prompt, bytes(answer[:-1]).decode(errors="replace"))
    assert right >= fewest_right(MINIMUM["ar"], problems * len(TASKS))


def test_the_diffusion_checkpoint_states_how_it_is_decoded() -> None:
    config = json.loads((checkpoint("diffusion") / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["block_diffusion"] == {"block_size": 32, "mask_token_id": MASK}


def test_blocks_take_widely_different_numbers_of_rounds() -> None:
    training = json.loads((checkpoint("diffusion") / "training.json").read_text())
    rounds = [
        int(count)
        for histogram in training["rounds_per_block"].values()
        for count, blocks in histogram.items()
        for _ in range(blocks)
    ]
    mean = sum(rounds) / len(rounds)
    deviation = math.sqrt(sum((count - mean) ** 2 for count in rounds) / len(rounds))
    assert deviation / mean > 0.25
    assert max(rounds) >= 8


def test_checkpoints_are_small_and_an_unknown_one_is_named() -> None:
    for weights in CHECKPOINTS.glob("*/model.safetensors"):
        assert weights.stat().st_size < 4_000_000
    with pytest.raises(ValueError, match="ar, diffusion"):
        checkpoint("moe")
