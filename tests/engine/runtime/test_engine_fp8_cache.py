"""An engine whose keys and values are in float8."""

from __future__ import annotations

import pytest
import torch
from stub_engine import run_all

from blis_py.errors import InputError
from engine.build import build_engine
from engine.config import EngineConfig
from engine.diffusion.build import build_diffusion_engine
from engine.diffusion.low_confidence import LowConfidence
from engine.diffusion.settings import DllmSettings
from engine.sampling_params import SamplingParams
from engine.tiny import checkpoint

PROMPTS = ["copy: rest -> ", "sort: dbca -> ", "reverse: abcd -> "]


def answers(overlap: bool = False, **settings: str) -> tuple[list[list[int]], int, torch.dtype]:
    """Tokens, pages in so many bytes, and the type of the cache."""
    config = EngineConfig(
        model=str(checkpoint("ar")),
        device="cpu",
        kv_cache_memory_bytes=1 << 20,
        max_model_len=128,
        async_scheduling=overlap,
        **settings,  # type: ignore[arg-type]
    )
    engine = build_engine(config)
    params = SamplingParams(temperature=0, max_tokens=12)
    sequences = [engine.add_request(prompt, params) for prompt in PROMPTS]
    run_all(engine)
    dtype = engine.executor.forward.kv[0][0].dtype
    return [list(s.output_ids) for s in sequences], engine.scheduler.config.num_kv_blocks, dtype


def test_answers_stay_right_and_the_same_memory_holds_four_times_as_much_as_in_float32() -> None:
    plain, pages, _ = answers()
    small, more, dtype = answers(kv_cache_dtype="fp8")
    assert dtype == torch.float8_e4m3fn
    assert more == 4 * pages
    assert sum(a == b for a, b in zip(plain, small, strict=True)) >= 2


def test_both_loops_give_the_same() -> None:
    assert answers(kv_cache_dtype="fp8")[0] == answers(overlap=True, kv_cache_dtype="fp8")[0]


def test_what_is_not_a_type_is_refused_and_block_diffusion_keeps_its_own() -> None:
    with pytest.raises(InputError, match="kv_cache_dtype"):
        EngineConfig(model="any", kv_cache_dtype="int8")
    config = EngineConfig(model=str(checkpoint("diffusion")), device="cpu", kv_cache_dtype="fp8")
    with pytest.raises(InputError, match="kv_cache_dtype: not for block diffusion"):
        build_diffusion_engine(config, DllmSettings(LowConfidence()))
