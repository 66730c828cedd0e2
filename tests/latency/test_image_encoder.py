"""Weights of encoders of images, against published counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blis_py.hardware.capacity import kv_capacity
from blis_py.hardware.gpu import load_gpu
from blis_py.hardware.memory_overheads import (
    BLIS_OVERHEADS,
    SGLANG_OVERHEADS,
    TRTLLM_OVERHEADS,
    VLLM_OVERHEADS,
    MemoryOverheads,
)
from blis_py.models.model_shape import load_model


@pytest.mark.parametrize(
    ("model", "millions", "projector"),
    [
        ("gemma-3-27b", 417, 1152 * 5376),  # table 1 of the Gemma 3 technical report
        ("gemma-4-31b", 569.6, 1152 * 5376),  # count of the checkpoint's own tensors
        ("kimi-k2.5", 417, 4608 * (4608 + 7168)),  # MoonViT starts from SigLIP-SO400M
        ("mistral-small-3.2-24b", 403.3, 4096 * 1024 + (1024 + 5120) * 5120),  # Pixtral's 400M
    ],
)
def test_weights_are_those_published(model: str, millions: float, projector: int) -> None:
    encoder = load_model(model).image_encoder
    assert encoder is not None
    assert (encoder.parameters - projector) / 1e6 == pytest.approx(millions, rel=0.005)


def test_a_model_and_its_encoder_are_the_tensors_of_its_checkpoint() -> None:
    shape = load_model("mistral-small-3.2-24b")
    assert shape.image_encoder is not None
    assert shape.parameters + shape.image_encoder.parameters == pytest.approx(24_011_361_280, rel=1e-4)


@pytest.mark.parametrize(
    ("overheads", "loaded"),
    [(VLLM_OVERHEADS, True), (SGLANG_OVERHEADS, True), (TRTLLM_OVERHEADS, False), (BLIS_OVERHEADS, False)],
)
def test_engines_load_it_beside_the_model(overheads: MemoryOverheads, loaded: bool) -> None:
    shape, gpu = load_model("qwen3.5-27b"), load_gpu("h100")
    assert shape.image_encoder is not None
    alone = kv_capacity(replace(shape, image_encoder=None), gpu, 2, overheads=overheads)
    both = kv_capacity(shape, gpu, 2, overheads=overheads)
    expected = shape.image_encoder.parameters * 2 // 2 if loaded else 0
    assert both.weight_bytes - alone.weight_bytes == pytest.approx(expected, abs=1)


def test_an_engine_that_serves_text_alone_does_not_load_it() -> None:
    shape, gpu = load_model("gemma-3-27b"), load_gpu("h100")
    alone = replace(shape, image_encoder=None)
    weights = {
        overheads: [kv_capacity(one, gpu, 2, overheads=overheads).weight_bytes for one in (shape, alone)]
        for overheads in (VLLM_OVERHEADS, SGLANG_OVERHEADS)
    }
    assert weights[VLLM_OVERHEADS][0] > weights[VLLM_OVERHEADS][1]
    assert weights[SGLANG_OVERHEADS][0] == weights[SGLANG_OVERHEADS][1]


@pytest.mark.parametrize("model", ["qwen3.5-27b", "llama-4-scout-fp8", "kimi-k3", "gemma-4-26b-a4b"])
def test_a_note_says_its_size_and_that_it_takes_no_time(model: str) -> None:
    shape = load_model(model)
    note = next(note for note in shape.notes if "encoder of images" in note)
    assert "billion weights" in note
    assert "no time" in note
    assert shape.image_encoder is not None
    assert 0.3e9 < shape.image_encoder.parameters < 1.2e9
