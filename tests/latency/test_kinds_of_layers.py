"""Kinds of layers: which there are, in order; bytes of KV and states by hand; prices that follow the work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import blis_py as blis
from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.hardware.capacity import kv_capacity, model_weight_bytes, rank_weight_bytes
from blis_py.hardware.gpu import load_gpu
from blis_py.hardware.layout import Layout
from blis_py.hardware.memory_overheads import VLLM_OVERHEADS
from blis_py.latency import build
from blis_py.latency.fitted_shape import facts_of, shape_of
from blis_py.models.layer_groups import layer_groups, sequence_bytes
from blis_py.models.model_shape import ModelShape, load_model, shape_from_config

PLAIN = {
    **{"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4},
    **{"head_dim": 128, "intermediate_size": 2048, "vocab_size": 32_000, "max_position_embeddings": 65_536},
}
EXPERTS = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
LATENT = {
    **{"kv_lora_rank": 512, "q_lora_rank": 768, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
    "v_head_dim": 128,
}
KIMI = {
    **{"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7], "num_heads": 16, "head_dim": 128},
    "short_conv_kernel_size": 4,
}
BLOCKS = {
    **{"sparse_attention_freq": [0, 0] + [1] * 6, "sparse_num_index_heads": 4, "sparse_index_dim": 128},
    **{"sparse_block_size": 128, "sparse_topk_blocks": 16, "sparse_local_block": 1},
}
KINDS: dict[str, dict[str, Any]] = {
    "full": {"model_type": "qwen3"},
    "windows": {
        "model_type": "gpt_oss",
        "sliding_window": 128,
        "num_local_experts": 16,
        "num_experts_per_tok": 2,
    },
    "two shapes of heads": {
        **{"model_type": "gemma4_text", "sliding_window": 1024, "global_head_dim": 256},
        **{
            "num_global_key_value_heads": 2,
            "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2,
        },
    },
    "heads of windows": {
        **{"model_type": "mimo_v2_flash", "head_dim": 192, "v_head_dim": 128, "sliding_window": 128},
        **{"swa_num_attention_heads": 16, "swa_num_key_value_heads": 8, "swa_head_dim": 192},
        **{"swa_v_head_dim": 128, "hybrid_layer_pattern": [0, 1, 1, 1] * 2, **EXPERTS},
        "moe_layer_freq": [0] + [1] * 7,
    },
    "heads of windows in a section": {
        **{"model_type": "step3p5", "num_key_value_heads": ..., "num_attention_groups": 4},
        **{"attention_other_setting": {"num_attention_heads": 32, "num_attention_groups": 8}},
        **{"layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 3, "sliding_window": 128},
        **{"num_nextn_predict_layers": 4, "moe_layers_enum": "3,4,5,6,7,8,9", "moe_num_experts": 16},
        **{"moe_top_k": 2, "moe_intermediate_size": 512, "share_expert_dim": 512},
    },
    "state space with experts": {
        **{"model_type": "granitemoehybrid", "layer_types": (["mamba"] * 3 + ["attention"]) * 2},
        **{"mamba_n_heads": 16, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128},
        **{"mamba_d_conv": 4, "num_local_experts": 16, "num_experts_per_tok": 2},
        "shared_intermediate_size": 512,
    },
    "gated delta rule": {
        **{"model_type": "qwen3_next", "linear_num_key_heads": 8, "linear_num_value_heads": 16, **EXPERTS},
        **{"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4},
        "mamba_ssm_dtype": "float32",
    },
    "Kimi delta attention": {
        **{"model_type": "kimi_linear", "linear_attn_config": KIMI, "routed_expert_hidden_size": 512},
        **{**EXPERTS, **LATENT, "first_k_dense_replace": 1, "num_shared_experts": 1},
    },
    "state space": {
        **{"model_type": "nemotron_h", "hybrid_override_pattern": "MEM*EM-M*", "num_hidden_layers": 9},
        **{"mamba_num_heads": 16, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128},
        **{"conv_kernel": 4, **EXPERTS, "moe_latent_size": 256, "mamba_ssm_cache_dtype": "float32"},
    },
    "latent": {"model_type": "deepseek_v3", **LATENT},
    "sparse": {
        **{"model_type": "glm_moe_dsa", **LATENT, "index_topk": 2048, "index_n_heads": 32},
        **{"index_head_dim": 128, "indexer_types": ["full", "shared"] * 4},
    },
    "compressed": {
        **{"model_type": "deepseek_v4", "num_key_value_heads": 1, "head_dim": 512, "q_lora_rank": 512},
        **{"o_lora_rank": 256, "o_groups": 4, "qk_rope_head_dim": 64, "sliding_window": 128, "hc_mult": 4},
        **{"index_topk": 512, "index_n_heads": 64, "index_head_dim": 128, **EXPERTS},
        "compress_ratios": [0, 4, 128, 4, 128, 4, 128, 4],
    },
    "blocks": {"model_type": "minimax_m3", "sparse_attention_config": BLOCKS, **EXPERTS},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def shape(kind: str, **changes: Any) -> ModelShape:
    """A small model of the kind."""
    return shape_from_config(kind, config_of(kind, **changes), Path("config.json"))


def config_of(kind: str, **changes: Any) -> dict[str, Any]:
    """Its config; `...` leaves a key out."""
    return {k: v for k, v in {**PLAIN, **KINDS[kind], **changes}.items() if v is not ...}


@pytest.mark.parametrize(
    ("kind", "runs"),
    [
        ("full", (("full", 8),)),
        ("windows", (("window", 1), ("full", 1)) * 4),
        ("two shapes of heads", (("window", 3), ("full", 1)) * 2),
        ("heads of windows", (("full", 1), ("window", 3)) * 2),
        ("heads of windows in a section", (("full", 1), ("window", 3)) * 2),
        ("state space with experts", (("linear", 3), ("full", 1)) * 2),
        ("gated delta rule", (("linear", 3), ("full", 1)) * 2),
        ("Kimi delta attention", (("linear", 3), ("full", 1)) * 2),
        ("state space", (("linear", 2), ("full", 1), ("linear", 2), ("full", 1))),
        ("blocks", (("full", 2), ("blocks", 6))),
    ],
)
def test_layers_are_in_the_order_of_the_config(kind: str, runs: tuple[tuple[str, int], ...]) -> None:
    assert shape(kind).kinds == runs


STATE = 16 * 128 * 128 * 4
"""A state of 16 heads of 128 by 128 in FP32."""


@pytest.mark.parametrize(
    ("kind", "token", "sequence"),
    [
        ("full", 8 * 2 * 4 * 128 * 2, 0),
        ("windows", 8 * 2 * 4 * 128 * 2, 0),
        ("two shapes of heads", (6 * 2 * 4 * 128 + 2 * 2 * 2 * 256) * 2, 0),
        ("heads of windows", (6 * 8 + 2 * 4) * (192 + 128) * 2, 0),
        ("heads of windows in a section", (6 * 8 + 2 * 4) * 2 * 128 * 2, 0),
        ("state space with experts", 2 * 2 * 4 * 128 * 2, 6 * (16 * 64 * 128 + (16 * 64 + 2 * 128) * 3) * 2),
        ("gated delta rule", 2 * 2 * 4 * 128 * 2, 6 * (STATE + (2 * 8 + 16) * 128 * 3 * 2)),
        ("Kimi delta attention", 2 * 576 * 2, 6 * (STATE + 3 * 16 * 128 * 3 * 2)),
        ("state space", 2 * 2 * 4 * 128 * 2, 4 * (16 * 64 * 128 * 4 + (16 * 64 + 2 * 8 * 128) * 3 * 2)),
        ("latent", 8 * 576 * 2, 0),
        ("sparse", 8 * 576 * 2 + 4 * 132, 0),
        (
            "compressed",
            4 * (584 + 132) // 4 + -(-3 * 584 // 128),
            # windows; keys and weights in FP32: 8 tokens of both entries and of the indexer's, or 128
            8 * 128 * 584 + 4 * 8 * 4 * (512 + 128) * 4 + 3 * 128 * 2 * 512 * 4,
        ),
        ("blocks", (8 * 2 * 4 * 128 + 6 * 128) * 2, 0),
    ],
)
def test_kv_and_states_have_the_bytes_of_their_kind(kind: str, token: int, sequence: int) -> None:
    one = shape(kind)
    assert one.kv_bytes_per_token == token
    assert sequence_bytes(one, 1) == sequence


def test_a_state_of_no_stated_format_has_that_of_the_activations() -> None:
    """A page of 544 tokens in vLLM's log of Qwen3-Next on two H200 holds one, and not a larger one."""
    linear = load_model("Qwen3-Next").linear
    assert linear is not None
    page, state = 544 * 1024, linear.sequence_bytes // linear.layers // 2
    assert page - 16 * 1024 < state <= page
    assert linear.state_bytes == 2


def test_heads_are_divided_among_ranks_and_latent_vectors_are_not() -> None:
    for kind, share in (("full", 4), ("blocks", 35 / 11), ("latent", 1), ("sparse", 1), ("compressed", 1)):
        one, four = (
            sum(group.layers * group.token_bytes for group in layer_groups(shape(kind), tp)) for tp in (1, 4)
        )
        assert one / four == pytest.approx(share, rel=0.05)


def test_windows_beside_wider_heads_keep_no_more_than_the_window() -> None:
    small, gpu = shape("two shapes of heads"), load_gpu("h100")
    pool = kv_capacity(small, gpu, overheads=VLLM_OVERHEADS)
    assert pool.block_bytes == 16 * 2 * (2 * 2 * 256) * 2


@every_kind
def test_weights_of_a_rank_add_up_to_the_model(kind: str) -> None:
    one = shape(kind)
    assert rank_weight_bytes(one, Layout(1)) == pytest.approx(model_weight_bytes(one))
    assert model_weight_bytes(one) == pytest.approx(2 * one.parameters)
    assert one.active_parameters <= one.parameters <= one.checkpoint_parameters


def test_layers_without_a_feed_forward_have_none() -> None:
    """Six layers: two with experts, one with a plain feed-forward of two matrices, three bare."""
    one = shape("state space")
    assert (one.layers, one.moe_layers, one.plain_layers, one.bare_layers) == (6, 2, 1, 3)
    assert one.dense_ffn_parameters == 2 * 1024 * 2048
    assert one.expert_parameters == 2 * 256 * 512


@every_kind
@pytest.mark.parametrize("gpu", ["h200", "b200", "h100"])
def test_more_work_takes_longer(kind: str, gpu: str) -> None:
    model = build("trained", shape=shape(kind), gpu=load_gpu(gpu), tp=1)

    def decode(seqs: int, context: int) -> int:
        kv = seqs * context
        step = StepFeatures(decode_seqs=seqs, decode_kv_tokens=kv, max_context=context, emitted_rows=seqs)
        return model.step_ns(step)

    contexts = [decode(32, context) for context in (128, 2048, 16_384, 65_536)]
    assert contexts == sorted(contexts)
    batches = [decode(seqs, 4096) for seqs in (1, 16, 256)]
    assert batches[0] < batches[1] < batches[2]


@every_kind
def test_a_small_model_of_every_kind_runs_under_every_engine(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of(kind)))
    for engine in ("vllm", "sglang", "trtllm"):
        result = blis.run(
            model_config=tmp_path, gpu="b200", engine=engine, rate=2, num_requests=4, prompt_tokens=300
        )
        assert result.summary["requests_completed"] == 4 if "requests_completed" in result.summary else True
        special = kind not in ("full", "windows", "gated delta rule", "latent")
        assert any("not validated" in n or "not learned" in n for n in result.notes) or not special


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("state space", "not validated for state-space layers (Mamba-2): no kernels were measured"),
        ("state space", "not validated for experts without a gate"),
        ("blocks", "sparse MoE"),
        ("compressed", "sparse compressed MoE"),
    ],
)
def test_a_result_names_the_kind_that_was_not_validated(kind: str, text: str) -> None:
    model = build("trained", shape=shape(kind), gpu=load_gpu("b200"), tp=2)
    assert text in model.beyond()


@every_kind
def test_facts_of_a_measured_model_are_read_back(kind: str) -> None:
    one = shape(kind)
    facts = json.loads(json.dumps(facts_of(one)))
    assert shape_of({"model": kind, "model_config": facts}) == replace(one, notes=())


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("compressed", {"compress_ratios": [0, 4]}, "compress_ratios: must name each of the 8 layers"),
        ("compressed", {"compress_ratios": None}, "compress_ratios: missing: how much each layer"),
        (
            "compressed",
            {"compress_ratios": [8] * 8},
            "compress_ratios: a ratio that is not modelled (found 8)",
        ),
        ("compressed", {"o_groups": ...}, "o_groups: missing"),
        ("blocks", {"sparse_attention_config": {**BLOCKS, "sparse_attention_freq": [1]}}, "must be 0 or 1"),
        ("state space", {"hybrid_override_pattern": "MX", "num_hidden_layers": 2}, "unknown kind of layer"),
        ("state space", {"hybrid_override_pattern": "MEEM", "num_hidden_layers": 4}, "behind another"),
        ("state space", {"hybrid_override_pattern": "ME"}, "must name each of the 9 layers (found 2)"),
        (
            "Kimi delta attention",
            {"linear_attn_config": {**KIMI, "kda_layers": [1]}},
            "kda_layers: must name",
        ),
        ("two shapes of heads", {"num_global_key_value_heads": 3}, "must divide num_attention_heads (16)"),
        ("full", {"num_kv_shared_layers": 2}, "layers that share a KV cache are not modelled"),
    ],
)
def test_a_refusal_names_the_kind_of_layer(kind: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        shape(kind, **changes)
    assert message in str(error.value)


# -- what vendors publish ------------------------------------------------------------------------------

GPUS = {"MiMo": ("h100", 1), "Nano": ("h100", 1), "Qwen3.6": ("b200", 1), "Super": ("b200", 4)}
GPUS |= {
    "V4-Pro-FP8": ("b300", 8),
    "V4-Flash": ("b200", 4),
    "Qwen3.8": ("gb300", 32),
    "NVFP4": ("b200", 8),
    "FP8": ("b200", 8),
}
"""Part of a name -> GPU and TP degree of a recipe; others 8 B300."""
BILLIONS = {
    **{"Flash": (284, 13.8), "V4-Pro": (1573, 49.8), "GLM-5": (744, 41.5), "Kimi-K3": (2780, 105)},
    **{"M3": (426, 26), "Nano": (31.6, 3.6), "Super": (120.7, 12.8), "Ultra": (549, 56.1)},
    **{"Qwen3.6-27B": (26.9, 26.9), "Qwen3.6-35B": (34.7, 3.45), "2.4T": (2420, 95.3), "MiMo": (7.6, 7.6)},
}
"""Part of a name -> billions of parameters, in all and active, with embeddings."""


def _of_2026(shared_data: Path) -> list[Path]:
    folder = shared_data / "model_configs_2026_10"
    files = [path for path in folder.glob("*_config.json") if "hf_quant" not in path.name]
    return sorted(files) or pytest.skip("needs ../shared/data/model_configs_2026_10")


def test_every_configuration_of_2026_is_read_and_priced(shared_data: Path) -> None:
    for path in _of_2026(shared_data):
        one = load_model(path.name, path)
        total, active = next(sizes for part, sizes in BILLIONS.items() if part in path.name)
        assert one.parameters / 1e9 == pytest.approx(total, rel=0.01), path.name
        assert one.active_parameters / 1e9 == pytest.approx(active, rel=0.015), path.name
        gpu, tp = next((hardware for part, hardware in GPUS.items() if part in path.name), ("b300", 8))
        pool = kv_capacity(one, load_gpu(gpu), tp, overheads=VLLM_OVERHEADS)
        assert pool.tokens > 100_000, path.name
        model = build("trained", shape=one, gpu=load_gpu(gpu), tp=tp)
        step = StepFeatures(decode_seqs=8, decode_kv_tokens=8 * 4096, max_context=4096, emitted_rows=8)
        assert 1e6 < model.step_ns(step) < 60e6, path.name
