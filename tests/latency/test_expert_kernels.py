"""Kernels of experts that a server is set to have prices, or are refused by name."""

from __future__ import annotations

import pytest

import blis_py as blis
from blis_py.errors import InputError


@pytest.mark.parametrize(
    ("engine", "model", "gpu", "backend", "priced"),
    [
        ("vllm", "llama-4-scout-fp8", "h100", "marlin", "auto or cutlass or flashinfer_cutlass or triton"),
        ("vllm", "mixtral-8x7b", "h100", "cutlass", "auto or triton"),
        ("vllm", "mixtral-8x7b", "h200", "marlin", "auto or triton"),
        ("vllm", "qwen3-30b-a3b", "b200", "triton", "auto or trtllm or flashinfer_trtllm"),
        ("vllm", "minimax-m2.5", "h200", "deepgemm", "auto or cutlass or flashinfer_cutlass or triton"),
        ("sglang", "gpt-oss-20b", "h200", "cutlass", "auto or triton or marlin"),
        ("trtllm", "qwen3-235b-a22b-fp8", "h200", "triton", "auto or cutlass or flashinfer_cutlass"),
        ("trtllm", "gpt-oss-120b", "b200", "cutlass", "auto or trtllm or flashinfer_trtllm"),
        ("sglang", "qwen3-30b-a3b", "h200", "deepep", "auto or triton"),
    ],
)
def test_kernels_of_experts_without_prices_are_refused(
    engine: str, model: str, gpu: str, backend: str, priced: str
) -> None:
    message = rf"--moe-backend: is not priced: experts of {model}'s .*found '{backend}'.*; use {priced}$"
    with pytest.raises(InputError, match=message):
        blis.build(model=model, gpu=gpu, tp=4, engine=engine, moe_backend=backend, num_requests=1)


@pytest.mark.parametrize(
    ("engine", "model", "gpu", "backend"),
    [
        ("vllm", "llama-4-scout-fp8", "h100", "triton"),
        ("vllm", "llama-4-scout-fp8", "h100", "cutlass"),
        ("vllm", "minimax-m2.5", "h200", "cutlass"),
        ("sglang", "qwen3-235b-a22b-fp8", "h200", "cutlass"),
        ("vllm", "gpt-oss-120b", "h100", "marlin"),
        ("trtllm", "qwen3-235b-a22b-fp8", "b200", "deepgemm"),
        ("trtllm", "gpt-oss-120b", "b200", "trtllm"),
        ("sglang", "qwen3-235b-a22b", "b200", "flashinfer_trtllm"),
    ],
)
def test_kernels_of_experts_with_rows_are_priced(engine: str, model: str, gpu: str, backend: str) -> None:
    settings = {"model": model, "gpu": gpu, "tp": 4, "engine": engine, "num_requests": 1}
    run = blis.build(**settings, moe_backend=backend)
    assert not [note for note in run.notes if "moe_backend" in note]
