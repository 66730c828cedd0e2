"""Failures of single requests, of steps, and of the whole device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import engine.sampler
from blis_py.errors import InputError
from engine.kernels.sampling import SamplingTensors, sample
from engine.llm import LLM
from engine.lost_device import is_lost
from engine.sampling_params import SamplingParams
from engine.tiny import checkpoint

PROMPTS = ["one two", "the cat", "echo x"]


def tensors(rows: int, temperature: float, top_k: int) -> SamplingTensors:
    return SamplingTensors(
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), top_k, dtype=torch.int32),
        top_p=torch.ones(rows),
        min_p=torch.zeros(rows),
        seeds=torch.arange(rows),
        positions=torch.arange(rows) + 5,
        all_greedy=temperature == 0,
        filtered=top_k > 0,
    )


@pytest.mark.parametrize(("temperature", "top_k"), [(0.0, 0), (0.8, 0), (0.8, 7)])
def test_a_row_of_nan_yields_no_token_and_the_others_theirs(temperature: float, top_k: int) -> None:
    logits = torch.randn(3, 128, generator=torch.Generator().manual_seed(1))
    expected = sample(logits.clone(), tensors(3, temperature, top_k)).tolist()
    logits[1] = torch.nan
    assert sample(logits, tensors(3, temperature, top_k)).tolist() == [expected[0], -1, expected[2]]


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_request_without_a_token_ends_alone(
    overlapped: bool, logprobs: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=8, ignore_eos=True, logprobs=logprobs)

    def outputs() -> list[Any]:
        llm = LLM(str(checkpoint("ar")), device="cpu", num_kv_blocks=64, async_scheduling=overlapped)
        try:
            return llm.generate(PROMPTS, params)
        finally:
            llm.shutdown()

    expected = outputs()
    real, steps = engine.sampler.sample, [0]

    def without_one(logits: torch.Tensor, given: SamplingTensors) -> torch.Tensor:
        tokens = real(logits, given)
        steps[0] += 1
        if steps[0] == 3:
            tokens = tokens.clone()
            tokens[0] = -1
        return tokens

    monkeypatch.setattr(engine.sampler, "sample", without_one)
    broken, *others = outputs()
    assert (broken.finish_reason, broken.token_ids) == ("error", expected[0].token_ids[:2])
    assert "not numbers" in (broken.error or "")
    assert [one.token_ids for one in others] == [one.token_ids for one in expected[1:]]


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA error: unspecified launch failure", True),
        ("CUDA error: device-side assert triggered", True),
        ("CUDA error: uncorrectable ECC error encountered", True),
        ("CUDA out of memory. Tried to allocate 2 GiB", False),
        ("CUDA error: invalid configuration argument", False),
        ("CUDA error: no kernel image is available for execution on the device", False),
        ("an illegal memory access", False),
    ],
)
def test_sticky_errors_lose_the_device(message: str, lost: bool) -> None:
    assert is_lost(RuntimeError(message)) == lost
    outer = ValueError("in a step")
    outer.__cause__ = RuntimeError(message)
    assert is_lost(outer) == lost


def test_a_model_whose_activations_exceed_float16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    import engine.build
    from engine.build import build_engine
    from engine.config import EngineConfig

    real = engine.build.load_model_config
    monkeypatch.setattr(
        engine.build, "load_model_config", lambda path: replace(real(path), exceeds_float16=True)
    )
    config = EngineConfig(model=str(checkpoint("ar")), device="cpu", num_kv_blocks=64, dtype="float16")
    with pytest.raises(InputError, match="float16"):
        build_engine(config)
    build_engine(replace(config, dtype="float32")).shutdown()
