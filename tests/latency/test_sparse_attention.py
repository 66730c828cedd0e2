"""Sparse attention: sizes to the byte, step times by measured kernels, notes of what was not measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_configs import config

import blis_py as blis
from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.hardware.capacity import kv_capacity, model_weight_bytes, rank_weight_bytes
from blis_py.hardware.gpu import load_gpu
from blis_py.hardware.layout import Layout
from blis_py.latency import build
from blis_py.latency.fitted_shape import facts_of, shape_of
from blis_py.models.model_shape import load_model
from blis_py.setup.deployment import with_kv_dtype

V3_2, GLM_5 = "deepseek-v3.2", "glm-5"
every_sparse = pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5"])


@pytest.mark.parametrize(
    ("model", "billions", "on_the_hub"),
    [("deepseek-v3.2", 671.9, 685.4), ("glm-5", 744, 753.9)],
)
def test_parameters_are_as_many_as_published(model: str, billions: float, on_the_hub: float) -> None:
    """On the hub with the layer that predicts further tokens."""
    shape = load_model(model)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=1e-3)
    assert shape.checkpoint_parameters / 1e9 == pytest.approx(on_the_hub, rel=0.01)


def test_an_indexer_adds_its_matrices_to_those_of_deepseek_v3() -> None:
    sparse, full = load_model("deepseek-v3.2"), load_model("deepseek-v3")
    queries, others = 1536 * 64 * 128, 7168 * (128 + 64) + 2 * 128
    assert sparse.parameters - full.parameters == 61 * (queries + others)
    assert model_weight_bytes(sparse) - model_weight_bytes(full) == 61 * (
        queries + 2 * others
    )  # FP8, 16 bits


def test_projections_down_to_a_latent_cache_and_the_indexers_are_whole_on_every_rank() -> None:
    shape = load_model("deepseek-v3.2")
    down, indexer = 7168 * (1536 + 512 + 64), 1536 * 64 * 128 + 2 * (7168 * (128 + 64) + 2 * 128)
    undivided = 61 * (down + indexer)
    divided = model_weight_bytes(shape) - undivided
    assert rank_weight_bytes(shape, Layout(8)) == pytest.approx(divided / 8 + undivided)
    assert rank_weight_bytes(shape, Layout(1)) == pytest.approx(model_weight_bytes(shape))


@pytest.mark.parametrize(
    ("model", "kv_cache_dtype", "expected"),
    [
        ("deepseek-v3.2", "auto", 61 * (576 * 2 + 132)),
        ("deepseek-v3.2", "fp8", 61 * (656 + 132)),
        ("glm-5", "auto", 78 * (576 * 2 + 132)),
    ],
)
def test_a_token_caches_its_latent_vector_and_the_key_of_the_indexer(
    model: str, kv_cache_dtype: str, expected: int
) -> None:
    """In FP8 a latent vector of 512 bytes has four scales, and a rotary key of 64 elements in 16 bits."""
    shape = with_kv_dtype(load_model(model), kv_cache_dtype)
    assert shape.kv_bytes_per_token == expected
    assert kv_capacity(shape, load_gpu("b300"), 16, block_size=64).block_bytes == 64 * expected


def test_layers_that_reuse_a_selection_have_no_indexer(tmp_path: Path) -> None:
    listed = ["full"] * 3 + ["shared", "shared", "shared", "full"] * 18 + ["shared"] * 3
    named = load_model("mine", config(tmp_path, GLM_5, indexer_types=listed))
    every = {"index_topk_freq": 4, "index_skip_topk_offset": 3}
    counted = load_model("mine", config(tmp_path, GLM_5, **every))
    assert named == counted
    assert named.indexer is not None
    assert named.indexer.layers == 21
    assert named.kv_bytes_per_token == 78 * 1152 + 21 * 132


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (V3_2, {"index_topk": ...}, "index_topk: missing"),
        (V3_2, {"index_n_heads": ...}, "index_n_heads: missing"),
        (V3_2, {"kv_lora_rank": ...}, "kv_lora_rank: missing"),
        (V3_2, {"q_lora_rank": ...}, "q_lora_rank: missing"),
        (GLM_5, {"indexer_types": ["full"] * 77}, "indexer_types: must be full or shared for each of the 78"),
        (GLM_5, {"indexer_types": ["none"] * 78}, "indexer_types: must be full or shared for each of the 78"),
        ("qwen3-14b", {"model_type": "qwen9", "index_topk": 2048}, "kv_lora_rank: missing"),
    ],
)
def test_a_config_with_an_incomplete_indexer_is_refused(
    tmp_path: Path, base: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as error:
        load_model("mine", config(tmp_path, base, **changes))
    assert f"config.json: {message}" in str(error.value)


@pytest.mark.parametrize("latency_model", ["trained-physics", "roofline", "kernel-tables"])
def test_only_operators_price_it(latency_model: str) -> None:
    with pytest.raises(InputError, match=f"{latency_model} does not price sparse attention"):
        build(latency_model, shape=load_model("glm-5"), gpu=load_gpu("b300"), tp=8)


def _decode_ns(model: str, context: int, gpu: str = "h200", seqs: int = 32) -> int:
    latency = build("trained", shape=load_model(model), gpu=load_gpu(gpu), tp=8)
    return latency.step_ns(
        StepFeatures(
            decode_seqs=seqs, decode_kv_tokens=seqs * context, max_context=context, emitted_rows=seqs
        )
    )


def test_beyond_its_choice_a_decode_hardly_grows_with_the_context() -> None:
    """Only the indexer reads the whole context: 132 bytes a token instead of 1,152."""
    sparse, full = (_decode_ns(m, 131_072) / _decode_ns(m, 4096) for m in ("deepseek-v3.2", "deepseek-v3"))
    assert 1 < sparse < 1.5 < full


@every_sparse
def test_longer_contexts_and_more_sequences_take_longer(model: str) -> None:
    at = [_decode_ns(model, context, "b200") for context in (128, 2048, 16_384, 131_072)]
    assert at == sorted(at)
    assert _decode_ns(model, 4096, "b200", 8) < _decode_ns(model, 4096, "b200", 64)


def test_a_layer_that_reuses_a_choice_is_cheaper(tmp_path: Path) -> None:
    every = {"index_topk_freq": 4, "index_skip_topk_offset": 3}
    shared = load_model("mine", config(tmp_path, GLM_5, **every))
    step = StepFeatures(decode_seqs=8, decode_kv_tokens=8 * 8192, max_context=8192, emitted_rows=8)
    own, reused = (
        build("trained", shape=shape, gpu=load_gpu("b200"), tp=8).step_ns(step)
        for shape in (load_model(GLM_5), shared)
    )
    assert 0.5 * own < reused < 0.95 * own


@pytest.mark.parametrize("gpu", ["h200", "b200", "gb300"])
def test_a_result_says_that_no_server_was_learned_on(gpu: str) -> None:
    result = blis.run(model="deepseek-v3.2", gpu=gpu, tp=8, rate=1, num_requests=2, prompt_tokens=100)
    assert any("sparse MLA MoE FP8" in note for note in result.notes)


def test_a_price_says_whose_kernels_stand_in() -> None:
    model = build("trained", shape=load_model("glm-5"), gpu=load_gpu("h100"), tp=8)
    assert "not validated for sparse attention (DSA): kernels of H200 stand in" in model.beyond()


def test_facts_of_a_measured_model_keep_its_indexer() -> None:
    shape = load_model("glm-5")
    assert shape_of({"model": "glm-5", "model_config": facts_of(shape)}) == replace(shape, notes=())
