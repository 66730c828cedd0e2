"""Kernels that are taken if chosen: launched early, of other libraries for fresh prompts, over float8."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from test_engine_gpu import build, problems, right, run

from engine.engine import LLMEngine
from engine.kernels.dependent_check import dependent_launch_works

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PACKAGES = {"cudnn": "torch", "flash-attn": "flash_attn", "flashinfer": "flashinfer", "math": "torch"}


def answers(engine: LLMEngine) -> list[list[int]]:
    return [list(sequence.output_ids) for sequence in run(engine, problems(48, "chosen"))]


@pytest.mark.parametrize("eager", [False, True], ids=["captured", "eager"])
def test_kernels_launched_early_compute_the_same(eager: bool) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs compute capability 9.0")
    early = build(dependent_launch=True, enforce_eager=eager)
    assert early.executor.forward.dependent, "the check of first use failed"
    assert answers(early) == answers(build(enforce_eager=eager))


def test_the_check_of_first_use_passes_again_and_again() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs compute capability 9.0")
    sizes = build().executor.forward.model.config
    for _ in range(20):
        assert dependent_launch_works(sizes, torch.bfloat16, torch.device("cuda"))


@pytest.mark.parametrize("backend", PACKAGES)
@pytest.mark.parametrize("overlap", [False, True], ids=["synchronous", "overlapped"])
def test_other_kernels_for_prompts_answer_as_well(backend: str, overlap: bool) -> None:
    if find_spec(PACKAGES[backend]) is None:
        pytest.skip(f"{PACKAGES[backend]} is not installed")
    plain, other = (
        build(async_scheduling=overlap, enforce_eager=True, attention_backend=name)
        for name in ("triton", backend)
    )
    prompts = problems(48, "chosen")
    assert right(run(other, prompts)) >= right(run(plain, prompts)) - 4


@pytest.mark.parametrize("eager", [False, True], ids=["captured", "eager"])
def test_a_cache_in_float8_answers_as_well(eager: bool) -> None:
    plain, small = (build(kv_cache_dtype=kind, enforce_eager=eager) for kind in ("auto", "fp8"))
    assert next(iter(small.executor.forward.kv))[0].dtype == torch.float8_e4m3fn
    prompts = problems(48, "chosen")
    assert right(run(small, prompts)) >= right(run(plain, prompts)) - 4
