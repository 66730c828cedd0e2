"""Plain torch, which the engine's throughput is compared with, does the same work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from blis_py.errors import InputError  # noqa: E402
from engine.build import build_engine  # noqa: E402
from engine.config import EngineConfig  # noqa: E402
from engine.models import build_model, load_model_config  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"
_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "eos_token_id": 299,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Qwen3ForCausalLM": {"model_type": "qwen3", "tie_word_embeddings": False},
    "Qwen2ForCausalLM": {"model_type": "qwen2", "tie_word_embeddings": True},
    "LlamaForCausalLM": {"model_type": "llama", "tie_word_embeddings": False},
    "MixtralForCausalLM": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
}


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmarks are scripts beside each other, not a package."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    torch.set_num_threads(1)


def checkpoint(folder: Path, architecture: str) -> str:
    config = {"architectures": [architecture], **_SIZES, **ARCHITECTURES[architecture]}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM"])
def test_static_batches_emit_the_tokens_of_the_engine(tmp_path: Path, architecture: str) -> None:
    from throughput import Mix, plain_run

    model = checkpoint(tmp_path, architecture)
    decoder = build_model(load_model_config(model), device="cpu", load_format="dummy", path=model)
    rng = Random(architecture)
    mix = Mix(
        [[rng.randrange(300) for _ in range(1 + 7 * i % 60)] for i in range(11)],
        [1 + 5 * i % 23 for i in range(11)],
    )
    engine = build_engine(EngineConfig(model=model, device="cpu", num_kv_blocks=64), model=decoder)
    sequences = [
        engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=length, ignore_eos=True))
        for prompt, length in zip(mix.prompts, mix.lengths, strict=True)
    ]
    while engine.has_unfinished:
        engine.step()
    expected = [sequence.output_ids for sequence in sequences]
    assert len({token for output in expected for token in output}) > 10
    for batch in (1, 4, 11):
        assert plain_run(decoder, mix, batch) == expected


def test_a_mixture_of_experts_is_refused(tmp_path: Path) -> None:
    from plain_generation import generate

    model = checkpoint(tmp_path, "MixtralForCausalLM")
    decoder = build_model(load_model_config(model), device="cpu", load_format="dummy", path=model)
    with pytest.raises(InputError, match="dense"):
        generate(decoder, [[1]], [1])


def test_the_mix_is_skewed_and_always_the_same() -> None:
    from throughput import draw_mix

    mix = draw_mix(400, 1024, 5000)
    assert mix == draw_mix(400, 1024, 5000)
    assert mix.first(3, 9).lengths == [min(length, 9) for length in mix.lengths[:3]]
    for lengths, median in ((list(map(len, mix.prompts)), 100), (mix.lengths, 200)):
        ordered = sorted(lengths)
        assert median * 0.8 < ordered[200] < median * 1.25
        assert sum(lengths) / 400 > 1.25 * ordered[200], "a few long ones among many short ones"
        assert 4 <= ordered[0] < ordered[-1] <= 1024


@pytest.mark.long
def test_the_comparison_runs_and_both_begin_alike(tmp_path: Path) -> None:
    model = checkpoint(tmp_path, "Qwen3ForCausalLM")
    options = ["--device", "cpu", "--requests", "12", "--longest", "40", "--batch", "4", "5"]
    command = [
        sys.executable,
        str(SCRIPTS / "throughput.py"),
        *options,
        "--model",
        model,
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(SCRIPTS.parents[1]), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[1:]
    assert [line.split()[-1] for line in lines] == ["100.0%"] * 3
    assert not (tmp_path / "throughput.json").exists(), "nothing was measured on a GPU"
