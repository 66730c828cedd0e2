"""What load_model_config reads from a config.json, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from blis_py.errors import InputError
from blis_py.files.profiles import find_profile
from blis_py.models.model_shape import known_models, load_model
from engine.layers.rope import Rope, cos_sin_table
from engine.models import load_model_config
from engine.models.config import ARCHITECTURES
from engine.models.weights import shapes_only, weight_bytes


def runs(name: str) -> bool:
    """Whether the engine has it; the simulator knows more architectures and quantised weights."""
    try:
        load_model_config(name)
    except InputError as error:
        if str(error.key).rpartition(".")[2] in ("architectures", "quantization_config"):
            return False
        raise
    return True


RUNNABLE = [name for name in known_models() if runs(name)]


def config(folder: Path, base: str = "qwen3-0.6b", **changes: Any) -> Path:
    """A bundled config with some keys replaced; `...` removes the key."""
    values = json.loads(find_profile("models", base).read_text()) | changes
    kept = {key: value for key, value in values.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_decoder_of_a_bundled_model_has_the_parameters_the_simulator_counts(name: str) -> None:
    """Biases, QK-norms and float32 routers come on top: less than a thousandth."""
    decoder = shapes_only(load_model_config(name), torch.bfloat16)
    weights = sum(weight.numel() for weight in decoder.parameters())
    assert 1 <= weights / load_model(name).parameters < 1.001


def test_weights_in_float8_take_a_byte_each() -> None:
    """Embeddings, norms and the LM head are not among them."""
    quantised, plain = (
        weight_bytes(load_model_config(name), torch.bfloat16) for name in ("qwen3-32b-fp8", "qwen3-32b")
    )
    assert 0.5 < quantised / plain < 0.55


@pytest.mark.parametrize("name", RUNNABLE)
def test_kv_per_token_is_what_the_simulator_counts(name: str) -> None:
    assert load_model_config(name).kv_elements_per_token * 2 == load_model(name).kv_bytes_per_token


def test_every_architecture_is_bundled_or_covered_by_a_test_of_its_own() -> None:
    bundled = {load_model_config(name).architecture for name in RUNNABLE}
    elsewhere = {"BailingMoeV2", "Gemma3", "Ministral", "SeedOss"}
    assert set(ARCHITECTURES) - bundled == {f"{name}ForCausalLM" for name in elsewhere}


def test_folder_file_and_name_lead_to_the_same_model(tmp_path: Path) -> None:
    by_name = load_model_config("Qwen/Qwen3-0.6B")
    assert by_name == load_model_config(config(tmp_path)) == load_model_config(tmp_path / "config.json")


def test_sparse_layers_are_those_neither_listed_as_dense_nor_skipped_by_the_step(tmp_path: Path) -> None:
    moe = {"num_hidden_layers": 8, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    assert load_model_config(config(tmp_path, "qwen3-30b-a3b", **moe)).sparse_layers == {1, 5, 7}


def test_the_first_layers_of_llada2_are_dense() -> None:
    llada = load_model_config("llada2.0-mini")
    assert (llada.sparse_layers, llada.shared_intermediate_size) == (set(range(1, 20)), 512)
    assert (llada.rotary_dim, llada.head_dim, llada.qk_norm, llada.tied_embeddings) == (64, 128, True, False)


def test_newer_configs_keep_theta_and_scaling_in_one_section(tmp_path: Path) -> None:
    scaling = json.loads(find_profile("models", "llama-3.1-8b").read_text())["rope_scaling"]
    newer = {"rope_theta": ..., "rope_scaling": ..., "rope_parameters": {**scaling, "rope_theta": 500_000.0}}
    assert load_model_config(config(tmp_path, "llama-3.1-8b", **newer)) == load_model_config("llama-3.1-8b")


def test_llama3_scaling_keeps_short_wavelengths_and_stretches_long_ones() -> None:
    rope = Rope(500_000.0, "llama3", 8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    scaled, plain = (cos_sin_table(r, 128, 2, "cpu")[1, 64:].asin() for r in (rope, Rope(500_000.0)))
    wavelengths = 2 * math.pi / plain.double()
    ratio = plain.double() / scaled.double()
    torch.testing.assert_close(ratio[wavelengths < 8192 / 4], torch.ones(29).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(ratio[wavelengths > 8192], torch.full((29,), 8.0).double(), atol=1e-4, rtol=0)
    between = ratio[(wavelengths > 8192 / 4) & (wavelengths < 8192)]
    assert (between.diff() > 0).all()
    assert between.min() > 1
    assert between.max() < 8


def test_a_window_as_long_as_the_context_is_accepted(tmp_path: Path) -> None:
    folder = config(tmp_path, "mistral-nemo-12b", sliding_window=128_000)
    assert load_model_config(folder) == load_model_config("mistral-nemo-12b")


def test_windows_are_those_of_each_layer(tmp_path: Path) -> None:
    every = config(tmp_path, "mistral-nemo-12b", sliding_window=4096)
    assert load_model_config(every).windows == (4096,) * 40
    changes = {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 20}
    last = config(tmp_path, "qwen2.5-7b", **changes)
    assert load_model_config(last).windows == (0,) * 20 + (512,) * 8
    assert load_model_config("gpt-oss-20b").windows == (128, 0) * 12


def test_gemma_3_as_published(tmp_path: Path) -> None:
    """Keys as in the config of google/gemma-3-1b-it, and the scaling of the larger ones."""
    values = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "max_position_embeddings": 32768,
        "num_attention_heads": 4,
        "num_hidden_layers": 26,
        "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "rope_theta": 1000000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "vocab_size": 262144,
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    model = load_model_config(tmp_path)
    assert model.windows == ((512,) * 5 + (0,)) * 4 + (512, 512)
    assert model.rope == Rope(1_000_000.0, "linear", 8.0)
    assert model.window_rope == Rope(10_000.0)
    assert model.attention_scale == 1 / 16
    assert model.tied_embeddings
    (tmp_path / "config.json").write_text(json.dumps({**values, "final_logit_softcapping": 30.0}))
    with pytest.raises(InputError, match=r"final_logit_softcapping: .*30"):
        load_model_config(tmp_path)


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        ("qwen3-0.6b", {"architectures": ["MambaForCausalLM"]}, "architectures: unknown architecture (found"),
        ("qwen3-0.6b", {"architectures": ...}, "architectures: missing"),
        ("qwen3-0.6b", {"architectures": [["Qwen3ForCausalLM"]]}, "architectures: must be a list of strings"),
        ("qwen3-0.6b", {"architectures": {"0": "Qwen3ForCausalLM"}}, "architectures: must be a list"),
        ("qwen3-0.6b", {"architectures": [None]}, "architectures: must be a list of strings"),
        ("qwen3-0.6b", {"hidden_size": ...}, "config.json: hidden_size: missing"),
        ("qwen3-0.6b", {"rms_norm_eps": ...}, "rms_norm_eps: missing"),
        ("qwen3-0.6b", {"rope_theta": ...}, "rope_theta: missing"),
        (
            "qwen3-0.6b",
            {"quantization_config": {"quant_method": "awq", "bits": 4}},
            "quantization_config: quantised weights of this kind are not supported (found 'awq'); use the",
        ),
        (
            "mistral-nemo-12b",
            {"layer_types": ["chunked_attention"] * 40, "sliding_window": 4096},
            "layer_types: not supported (found 'chunked_attention')",
        ),
        ("qwen3-0.6b", {"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "rope_type: not supported"),
        ("qwen3-0.6b", {"rope_scaling": {"type": "longrope"}}, "rope_scaling.type: not supported (found"),
        ("qwen3-0.6b", {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor: missing"),
        ("qwen3-0.6b", {"partial_rotary_factor": 1.5}, "partial_rotary_factor: must rotate an even part"),
        ("qwen3-0.6b", {"hidden_act": "gelu"}, "hidden_act: activation not supported"),
        ("llama-2-7b", {"mlp_bias": True}, "mlp_bias: not supported"),
        ("mixtral-8x7b", {"num_local_experts": 0}, "num_local_experts: must be at least 2"),
        ("llada2.0-mini", {"score_function": "softmax"}, "score_function: not supported"),
        ("llada2.0-mini", {"n_group": 7}, "n_group: must divide num_experts (256)"),
        ("llada2.0-mini", {"topk_group": 9}, "topk_group: must be at most n_group"),
        ("llada2.0-mini", {"moe_router_enable_expert_bias": False}, "expert_bias: not supported"),
        ("llada2.0-mini", {"routed_scaling_factor": ...}, "routed_scaling_factor: missing"),
    ],
)
def test_an_unsupported_config_is_refused_by_file_and_key(
    tmp_path: Path, base: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as error:
        load_model_config(config(tmp_path, base, **changes))
    assert message in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_quantised_weights_are_refused_wherever_the_config_has_them(tmp_path: Path) -> None:
    folder = config(tmp_path)
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    with pytest.raises(InputError, match=r"hf_quant_config\.json: quantization: quantised weights of this"):
        load_model_config(folder)
    (tmp_path / "hf_quant_config.json").unlink()
    values = json.loads((tmp_path / "config.json").read_text())
    outer = {"text_config": values, "quantization_config": {"quant_method": "awq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    with pytest.raises(InputError, match=r"config\.json: quantization_config: quantised weights of this"):
        load_model_config(folder)


def test_an_unknown_model_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--model: neither a folder nor a bundled model.*qwen3-0\.6b"):
        load_model_config(tmp_path / "absent")
    with pytest.raises(InputError, match=r"config\.json: No such file"):
        load_model_config(tmp_path)
