"""Every published config is read as its publisher describes it, priced with a note, or refused by name."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from model_configs import published

from blis_py.hardware.capacity import model_weight_bytes
from blis_py.latency import work
from blis_py.models.model_shape import ModelShape, load_model

# Billions of parameters, in all and active, as the model's name or its card says them.
BILLIONS = {
    "01-ai/Yi-34B": (34.4, 34.4),
    "MiniMaxAI/MiniMax-M2.5": (229, 10),
    "Qwen/Qwen2.5-7B-Instruct": (7.61, 7.61),
    "Qwen/Qwen3-0.6B": (0.596, 0.596),
    "Qwen/Qwen3-1.7B": (1.72, 1.72),
    "Qwen/Qwen3-14B": (14.8, 14.8),
    "Qwen/Qwen3-235B-A22B": (235, 22),
    "Qwen/Qwen3-235B-A22B-FP8": (235, 22),
    "Qwen/Qwen3-30B-A3B": (30.5, 3.3),
    "Qwen/Qwen3-30B-A3B-FP8": (30.5, 3.3),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": (30.5, 3.3),
    "Qwen/Qwen3-32B": (32.8, 32.8),
    "Qwen/Qwen3-32B-FP8": (32.8, 32.8),
    "Qwen/Qwen3-32B-FP8-Static-PerTensor": (32.8, 32.8),
    "Qwen/Qwen3-4B": (4.02, 4.02),
    "Qwen/Qwen3-4B-Instruct-2507": (4.02, 4.02),
    "Qwen/Qwen3-8B": (8.19, 8.19),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": (480, 35),
    "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic": (108, 17),
    "codellama/CodeLlama-34b-Instruct-hf": (33.7, 33.7),
    "google/gemma-3-12b-it": (11.8, 11.8),  # without the 0.4 of its vision encoder, as below
    "google/gemma-3-27b-it": (27.0, 27.0),
    "google/gemma-3-4b-it": (3.88, 3.88),
    "meta-llama/Llama-2-70b-hf": (69.0, 69.0),
    "meta-llama/Llama-2-7b-hf": (6.74, 6.74),
    "meta-llama/Llama-3.1-70B-Instruct": (70.6, 70.6),
    "meta-llama/Llama-3.1-8B-Instruct": (8.03, 8.03),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": (400, 17),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (108, 17),
    "meta-llama/Meta-Llama-3.1-405B": (406, 406),
    "meta-llama/Meta-Llama-3.1-70B": (70.6, 70.6),
    "meta-llama/Meta-Llama-3.1-8B": (8.03, 8.03),
    "mistralai/Mistral-Nemo-Instruct-2407": (12.2, 12.2),
    "mistralai/Mixtral-8x22B-v0.1": (141, 39),
    "mistralai/Mixtral-8x7B-v0.1": (46.7, 12.9),
    "nvidia/Llama-3.1-70B-Instruct-FP8": (70.6, 70.6),
    "nvidia/MiniMax-M2.5-NVFP4": (229, 10),
    "nvidia/Qwen3-235B-A22B-NVFP4": (235, 22),
    "openai/gpt-oss-120b": (117, 5.1),
    "openai/gpt-oss-20b": (20.9, 3.6),
    "Qwen/Qwen3.5-122B-A10B": (122, 10),
    "Qwen/Qwen3.5-27B": (27, 27),
    "Qwen/Qwen3.5-35B-A3B": (35, 3),
    "Qwen/Qwen3.5-397B-A17B": (397, 17),
    "deepseek-ai/DeepSeek-R1": (671, 37),
    "deepseek-ai/DeepSeek-V2-Lite": (15.7, 2.4),
    "deepseek-ai/DeepSeek-V3": (671, 37),
    "moonshotai/Kimi-K2-Instruct": (1026, 32),
    "moonshotai/Kimi-K2.5": (1026, 32),
    "nvidia/DeepSeek-V3.1-NVFP4": (671, 37),
    "nvidia/Kimi-K2.5-NVFP4": (1026, 32),
    "nvidia/Qwen3.5-122B-A10B-NVFP4": (122, 10),
    "nvidia/Qwen3.5-397B-A17B-NVFP4": (397, 17),
    "zai-org/GLM-4.5": (353, 32),  # 355 with the layer that predicts further tokens
    "zai-org/GLM-4.5-Air": (107, 12),
    "deepseek-ai/DeepSeek-V3.2": (671.9, 37),  # 685.4 with the layer that predicts further tokens
    "nvidia/DeepSeek-V3.2-NVFP4": (671.9, 37),
    "nvidia/GLM-5-NVFP4": (744, 40),
    "zai-org/GLM-5": (744, 40),
    "zai-org/GLM-5-FP8": (744, 40),
    "zai-org/GLM-5.2-FP8": (744, 40),
}
GEMMA_4 = {"google/gemma-4-26B-A4B", "nvidia/Gemma-4-26B-A4B-NVFP4", "nvidia/Gemma-4-31B-IT-NVFP4"}
"""Two shapes of heads: see `test_kinds_of_layers`."""

# Bytes per weight of (attention, dense feed-forward and shared experts, routed experts), where not all are 2.
FP8 = (1.0, 1.0, 1.0)
SIZES = {
    "MiniMaxAI/MiniMax-M2.5": FP8,
    "Qwen/Qwen3-235B-A22B-FP8": FP8,
    "Qwen/Qwen3-30B-A3B-FP8": FP8,
    "Qwen/Qwen3-32B-FP8": FP8,
    "Qwen/Qwen3-32B-FP8-Static-PerTensor": FP8,
    "nvidia/Llama-3.1-70B-Instruct-FP8": FP8,
    "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic": (2.0, 1.0, 1.0),
    "nvidia/Qwen3-235B-A22B-NVFP4": (0.5625, 0.5625, 0.5625),
    "nvidia/MiniMax-M2.5-NVFP4": (2.0, 0.5625, 0.5625),
    "openai/gpt-oss-120b": (2.0, 2.0, 0.53125),
    "openai/gpt-oss-20b": (2.0, 2.0, 0.53125),
    "deepseek-ai/DeepSeek-R1": FP8,
    "deepseek-ai/DeepSeek-V3": FP8,
    "moonshotai/Kimi-K2-Instruct": FP8,
    "moonshotai/Kimi-K2.5": (2.0, 2.0, 0.5625),
    "nvidia/Kimi-K2.5-NVFP4": (2.0, 0.5625, 0.5625),
    "deepseek-ai/DeepSeek-V3.2": FP8,
    "nvidia/GLM-5-NVFP4": (2.0, 0.5625, 0.5625),
    "zai-org/GLM-5-FP8": FP8,
    "zai-org/GLM-5.2-FP8": FP8,
}
EIGHT_BIT_KV = {
    "Qwen/Qwen3-32B-FP8-Static-PerTensor",
    "nvidia/Llama-3.1-70B-Instruct-FP8",
    "nvidia/MiniMax-M2.5-NVFP4",
    "nvidia/Qwen3-235B-A22B-NVFP4",
    "nvidia/DeepSeek-V3.1-NVFP4",
    "nvidia/DeepSeek-V3.2-NVFP4",
    "nvidia/GLM-5-NVFP4",
    "nvidia/Kimi-K2.5-NVFP4",
    "nvidia/Qwen3.5-122B-A10B-NVFP4",
    "nvidia/Qwen3.5-397B-A17B-NVFP4",
}
PRICED_BY_MEAN = {"nvidia/DeepSeek-V3.1-NVFP4", "nvidia/DeepSeek-V3.2-NVFP4"}
"""Whose output projection alone is quantised of attention."""
MIXED = (*PRICED_BY_MEAN, "nvidia/Qwen3.5-122B-A10B-NVFP4", "nvidia/Qwen3.5-397B-A17B-NVFP4")
"""With several formats within one kind of weights."""
WINDOWED = {  # layers that do not see everything, and how far they see
    "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic": (36, 8192),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": (36, 8192),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (36, 8192),
    "google/gemma-3-4b-it": (29, 1024),
    "google/gemma-3-12b-it": (40, 1024),
    "google/gemma-3-27b-it": (52, 1024),
    "openai/gpt-oss-120b": (18, 128),
    "openai/gpt-oss-20b": (12, 128),
}
WITH_IMAGES = {
    model
    for model in BILLIONS
    if "gemma-3" in model or model.startswith("RedHatAI") or "Qwen3.5" in model or "Kimi-K2.5" in model
}


def load(shared_data: Path, model: str) -> ModelShape:
    return load_model(model, published(shared_data)[model])


def raw(shared_data: Path, model: str) -> dict[str, Any]:
    """The config's own words on the language part."""
    values = json.loads(published(shared_data)[model].read_text())
    inner: dict[str, Any] = values.get("text_config", values)
    return inner


def attention_by_hand(c: dict[str, Any]) -> int:
    """Attention of all layers: of grouped queries, latent, or of a gated delta rule in three of four
    layers."""
    layers, d, h = c["num_hidden_layers"], c["hidden_size"], c["num_attention_heads"]
    if "kv_lora_rank" in c:
        q, kv, rope, nope, v = (c[f"{n}"] for n in LATENT)
        queries = q * (d + h * (nope + rope)) if q else d * h * (nope + rope)
        return int(layers * (queries + d * (kv + rope) + kv * h * (nope + v) + h * v * d))
    k, size = c["num_key_value_heads"], c.get("head_dim") or d // h
    if "linear_num_value_heads" not in c:
        return int(layers * (d * h * size + 2 * d * k * size + h * size * d))
    keys, values = c["linear_num_key_heads"] * 128, c["linear_num_value_heads"] * 128
    full = 2 * d * h * size + 2 * d * k * size + h * size * d  # queries and their gate
    convolved = 2 * keys + values
    linear = d * (convolved + values + 2 * values // 128) + values * d
    small = 4 * convolved + 2 * values // 128 + 128
    return int(layers // 4 * full + layers * 3 // 4 * (linear + small))


LATENT = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
HYBRID = [model for model in BILLIONS if "Qwen3.5" in model]
SPARSE = [model for model in BILLIONS if "DeepSeek-V3.2" in model or "GLM-5" in model]
MLA = [model for model in BILLIONS if "DeepSeek" in model or "Kimi" in model or model in SPARSE]
PLAIN = [model for model in BILLIONS if model not in (*HYBRID, *MLA)]


def indexed_by_hand(c: dict[str, Any]) -> int:
    """Layers with an indexer of sparse attention: of GLM-5.2 the first three, then every fourth."""
    if "index_topk" not in c:
        return 0
    return 3 + 18 if c.get("index_topk_freq") == 4 else int(c["num_hidden_layers"])


def indexers_by_hand(c: dict[str, Any]) -> tuple[int, int]:
    """Weights of all indexers: of queries, and of keys, heads and norm (weight and bias)."""
    layers, heads = indexed_by_hand(c), c.get("index_n_heads", 0)
    queries = layers * c.get("q_lora_rank", 0) * heads * 128 if layers else 0
    return queries, layers * (c["hidden_size"] * (128 + heads) + 2 * 128)


def by_hand(c: dict[str, Any]) -> dict[str, float]:
    """Weights of each kind, counted from the config's own words by another hand."""
    queries, others = indexers_by_hand(c)
    layers, d = c["num_hidden_layers"], c["hidden_size"]
    experts = next((c[n] for n in ("num_local_experts", "num_experts", "n_routed_experts") if c.get(n)), 0)
    expert = 3 * d * (c.get("moe_intermediate_size") or c["intermediate_size"])
    every, first = c.get("interleave_moe_layer_step", 1), c.get("first_k_dense_replace", 0)
    sparse = layers // every - first if experts else 0
    shared = 1 if c["model_type"] == "llama4_text" else c.get("n_shared_experts", 0)
    shared_width = c.get("shared_expert_intermediate_size", 0)
    return {
        "attention": attention_by_hand(c),
        "dense": (layers - sparse)
        * 3
        * d
        * (c.get("intermediate_size_mlp") or c.get("intermediate_size", 0)),
        "shared": sparse * (shared * expert + 3 * d * shared_width),
        "experts": sparse * experts * expert,
        "embedding": c["vocab_size"] * d,
        "head": 0 if c.get("tie_word_embeddings", "gemma" in c["model_type"]) else c["vocab_size"] * d,
        "indexer": queries,
        "rest": sparse * d * experts + (2 * layers + 1) * d + others,
        "active": sparse * (c.get("num_experts_per_tok") or 0) * expert,
    }


def test_every_published_config_is_read_or_refused(shared_data: Path) -> None:
    assert set(published(shared_data)) == set(BILLIONS) | GEMMA_4


@pytest.mark.parametrize("model", BILLIONS)
def test_parameters_are_as_many_as_the_name_says(shared_data: Path, model: str) -> None:
    shape = load(shared_data, model)
    total, active = BILLIONS[model]
    assert shape.parameters / 1e9 == pytest.approx(total, rel=0.012)
    count = by_hand(raw(shared_data, model))
    assert shape.parameters == sum(count.values()) - count["active"]
    assert shape.active_parameters == sum(count.values()) - count["experts"]
    if shape.is_moe:  # cards leave out the embedding, or it and the LM head
        embedding = shape.embedding_parameters / 1e9
        most = shape.active_parameters / 1e9
        assert most - 2 * embedding - 0.6 <= active <= 1.03 * most + 0.1


@pytest.mark.parametrize("model", [model for model in BILLIONS if model not in MIXED])
def test_weights_have_the_bytes_of_their_formats(shared_data: Path, model: str) -> None:
    shape, count = load(shared_data, model), by_hand(raw(shared_data, model))
    attention, dense, experts = SIZES.get(model, (2.0, 2.0, 2.0))
    expected = (
        (count["attention"] + count["indexer"]) * attention
        + (count["dense"] + count["shared"]) * dense
        + count["experts"] * experts
        + (count["embedding"] + count["head"] + count["rest"]) * 2
    )
    assert model_weight_bytes(shape) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("model", BILLIONS)
def test_a_token_of_kv_has_the_bytes_of_its_format(shared_data: Path, model: str) -> None:
    c = raw(shared_data, model)
    size = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    layers = c["num_hidden_layers"] // (4 if model in HYBRID else 1)
    elements = 2 * layers * c["num_key_value_heads"] * size
    if model in MLA:
        elements = layers * (c["kv_lora_rank"] + c["qk_rope_head_dim"])
    expected = elements * (1 if model in EIGHT_BIT_KV else 2)
    if model in SPARSE:  # 512 + 4 scales of 4 bytes + 64 of 2 bytes; indexers: 128 + a scale
        expected = layers * (656 if model in EIGHT_BIT_KV else 1152) + indexed_by_hand(c) * 132
    assert load(shared_data, model).kv_bytes_per_token == expected


@pytest.mark.parametrize("model", PLAIN)
def test_a_token_costs_two_flops_per_weight_it_passes_through(shared_data: Path, model: str) -> None:
    shape, count = load(shared_data, model), by_hand(raw(shared_data, model))
    flops = shape.layers * work.projections(shape, 1, 1).flops + work.head(shape, 1, 1).flops
    flops += (shape.layers - shape.moe_layers) * work.dense_ffn(shape, 1, 1).flops
    flops += shape.moe_layers * work.sparse_ffn(shape, 1, 1).flops if shape.is_moe else 0
    router = shape.moe_layers * shape.router_parameters
    passed = router + sum(count[kind] for kind in ("attention", "dense", "shared", "active", "embedding"))
    assert flops == pytest.approx(2 * passed, rel=1e-9)


@pytest.mark.parametrize("model", BILLIONS)
def test_notes_state_what_is_assumed_and_nothing_else(shared_data: Path, model: str) -> None:
    notes = list(load(shared_data, model).notes)
    if model in WINDOWED:
        layers, tokens = WINDOWED[model]
        every = raw(shared_data, model)["num_hidden_layers"]
        text = f"{layers} of the {every} layers of {model} attend to {tokens:,} tokens at most"
        assert any(text in note for note in notes)
    assert any("an encoder of images" in note for note in notes) == (model in WITH_IMAGES)
    assert any("the KV cache takes 8 bits" in note for note in notes) == (model in EIGHT_BIT_KV)
    those = (WINDOWED, WITH_IMAGES, EIGHT_BIT_KV, PRICED_BY_MEAN)
    assert len(notes) == sum(model in each for each in those)


def test_weights_are_as_large_as_vllm_states_it_has_loaded(shared_data: Path) -> None:
    """Within 1 %; the vision encoder of Gemma 3 makes 2 % more."""
    quantised = {"Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": "Qwen/Qwen3-235B-A22B-FP8"}
    files, compared = published(shared_data), 0
    with (shared_data / "kernels_more" / "kv_pools.csv").open() as rows:
        for row in csv.DictReader(rows):
            model = quantised.get(row["model"], row["model"])
            if row["engine"] != "vllm" or not row["model_load_gib"] or model not in BILLIONS:
                continue
            loaded = float(row["model_load_gib"]) * int(row["tp"])
            ours = model_weight_bytes(load_model(model, files[model])) / (1 << 30)
            assert ours == pytest.approx(loaded, rel=0.03 if model in WITH_IMAGES else 0.01), row
            compared += 1
    assert compared >= 5


def test_four_bit_weights_are_as_large_as_vllm_states_it_has_loaded(
    shared_data: Path, tmp_path: Path
) -> None:
    """Mistral-7B has the layers of Mixtral-8x7B with one expert; TheBloke's GPTQ has groups of 128."""
    values = raw(shared_data, "mistralai/Mixtral-8x7B-v0.1") | {"model_type": "mistral"}
    dense = {key: value for key, value in values.items() if "expert" not in key}
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}
    (tmp_path / "config.json").write_text(json.dumps(dense | {"quantization_config": gptq}))
    shape = load_model("TheBloke/Mistral-7B-Instruct-v0.2-GPTQ", tmp_path)
    with (shared_data / "kernels_more" / "kv_pools.csv").open() as rows:
        loaded = {row["model"]: row["model_load_gib"] for row in csv.DictReader(rows)}
    ours = model_weight_bytes(shape) / (1 << 30)
    assert ours == pytest.approx(float(loaded[shape.name]), rel=0.01)
