"""Step times on a CUDA device: what GPU time is, and a small profile on captured steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.build import build_engine
from engine.config import EngineConfig
from engine.profile.measure import StepBench
from engine.profile.prompts import ProfilePrompts
from engine.profile.run import EFFORTS, profile
from engine.profile.shapes import Shape
from engine.timing import GpuSpan
from engine.tiny import checkpoint

DEVICE = "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
AR = str(checkpoint("ar"))


def test_many_tiny_kernels_are_bound_by_launching_and_one_large_product_is_not() -> None:
    x, large = torch.zeros(1, device=DEVICE), torch.randn(8192, 8192, device=DEVICE).bfloat16()
    for _ in range(2):  # the first time warms up
        torch.cuda.synchronize()
        tiny, heavy = GpuSpan(), GpuSpan()
        tiny.begin()
        for _ in range(500):
            x.add_(1)
        tiny.end()
        found = tiny.measured()
        heavy.begin()
        large @ large
        heavy.end()
    assert found[1]
    gpu_ns, launch_bound = heavy.measured()
    assert not launch_bound
    assert gpu_ns > 2 * 8192**3 / 5e15 * 1e9, "no GPU multiplies that fast"


def test_placed_sequences_decode_in_captured_steps() -> None:
    engine = build_engine(EngineConfig(model=AR, device=DEVICE, max_num_seqs=8, num_kv_blocks=300))
    bench = StepBench(engine, ProfilePrompts(engine.vocab_size, engine.tokenizer, 0))
    decodes = bench.visit(Shape("decode", (40, 5, 300), steps=3))
    assert decodes["decode_kv_tokens"].tolist() == [345, 348, 351]
    assert set(decodes["regime"].tolist()) == {"graph"}
    assert decodes["bucket"].tolist() == [4, 4, 4]
    prompts = bench.visit(Shape("prefill", prefills=((20, 64), (7, 0))))
    assert prompts["prefill_kv_tokens"].tolist() == [64]
    assert prompts["bucket"].tolist() == [32], "captured with its prompts"
    for samples in (decodes, prompts):
        assert (samples["gpu_ns"] > 0).all()
        assert (samples["total_ns"] > samples["gpu_ns"]).all()
        assert np.isin(samples["launch_bound"], (0, 1)).all()


def test_a_quick_profile_is_complete(tmp_path: Path) -> None:
    config = EngineConfig(model=AR, device=DEVICE, max_num_seqs=4, num_kv_blocks=200, max_model_len=256)
    outcome = profile(config, replace(EFFORTS["quick"], rounds=1), tmp_path)
    assert outcome.complete
    assert {"graph", "eager"} == set(outcome.samples["regime"].tolist())
    assert outcome.samples.meta["driver"]


def test_a_visit_that_is_launched_ahead_shows_gpu_time_without_launching() -> None:
    config = EngineConfig(model=AR, device=DEVICE, max_num_seqs=8, num_kv_blocks=300, enforce_eager=True)
    engine = build_engine(config)
    bench = StepBench(engine, ProfilePrompts(engine.vocab_size, engine.tokenizer, 0))
    shape = Shape("prefill", prefills=((20, 64), (7, 0)))
    bench.visit(shape)
    visits = [bench.visit(shape) for _ in range(4)]
    assert not any(samples["launch_bound"].any() for samples in visits)
    for samples in visits:
        assert 0 < samples["gpu_ns"][0] < samples["launching_ns"][0] < samples["total_ns"][0]
