"""What each way of quantising does to the bytes of weights and KV cache, and which weights are left alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_configs import config, values_of

from blis_py.errors import InputError
from blis_py.hardware.capacity import kv_capacity
from blis_py.hardware.gpu import load_gpu
from blis_py.models.model_shape import ModelShape, load_model
from blis_py.models.weights import Weights

GATES = [f"model.layers.{layer}.mlp.gate" for layer in range(48)]
ATTENTION = [f"model.layers.{layer}.self_attn*" for layer in range(48)]
FLOAT_8 = {"num_bits": 8, "type": "float"}
INT_4 = {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True}


def compressed(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    group = {"weights": weights, "targets": more.pop("targets", ["Linear"])}
    group["input_activations"] = more.pop("activations", None)
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **more}


def quantised(folder: Path, base: str = "qwen3-30b-a3b", **quantisation: Any) -> ModelShape:
    return load_model("mine", config(folder, base, quantization_config=quantisation))


@pytest.mark.parametrize(
    ("quantisation", "weights"),
    [
        ({"quant_method": "fp8"}, Weights.of(1.0, "fp8")),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, Weights.of(1.0, "fp8")),
        ({"quant_method": "gptq", "bits": 4}, Weights.of(0.5)),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, Weights.of(0.5)),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, Weights.of(0.5 + 2.5 / 128)),
        ({"quant_method": "gptq", "bits": 8, "lm_head": True}, Weights.of(1.0, head=1.0)),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, Weights.of(0.5 + 2.5 / 64)),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, Weights.of(0.5625)),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, Weights.of(1.0)),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            Weights.of(0.5 + 1 / 64),
        ),
        ({"quant_method": "gptq", "bits": 2}, Weights.of(0.25)),
        ({"quant_method": "gptq", "bits": 3}, Weights.of(0.375)),
        ({"quant_method": "modelopt_fp4", "quant_algo": "NVFP4"}, Weights.of(0.5625, "fp4", head=0.5625)),
        ({"quant_method": "fp8", "modules_to_not_convert": ["*"]}, replace(Weights(), arithmetic="fp8")),
        (compressed(FLOAT_8 | {"group_size": 128}), Weights.of(1 + 2 / 128, head=1 + 2 / 128)),
        (compressed(INT_4 | {"group_size": -1}, targets=[]), Weights.of(0.5, head=0.5)),
        (compressed(FLOAT_8, targets=["Linear", "re:.*nothing.*"]), Weights.of(1.0, head=1.0)),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, Weights.of(1.0, "fp8", head=1.0)),
        ({"quant_algo": "NVFP4", "ignore": ["lm_head"]}, Weights.of(0.5625, "fp4")),
        (compressed(FLOAT_8, activations=FLOAT_8, ignore=["lm_head"]), Weights.of(1.0, "fp8")),
        (compressed(FLOAT_8), Weights.of(1.0, head=1.0)),
        (compressed({"num_bits": 8}, activations={"num_bits": 8}), Weights.of(1.0, "int8", head=1.0)),
        (compressed(INT_4, ignore=["re:.*lm_head"]), Weights.of(0.5 + 2 / 32)),
        (compressed(INT_4 | {"symmetric": False}, ignore=["lm_head"]), Weights.of(0.5 + 2.5 / 32)),
        (
            compressed({"num_bits": 4, "type": "float", "group_size": 16}, ignore=["lm_head"]),
            Weights.of(0.5625),
        ),
    ],
)
def test_each_way_of_quantising_has_its_bytes_and_its_arithmetic(
    tmp_path: Path, quantisation: dict[str, Any], weights: Weights
) -> None:
    assert quantised(tmp_path, **quantisation).weights == weights


def test_mxfp4_quantises_the_experts_only() -> None:
    weights = load_model("gpt-oss-120b").weights
    assert weights == Weights(experts=0.53125, arithmetic="fp4")


@pytest.mark.parametrize(
    ("left_alone", "kept"),
    [
        (["lm_head", *GATES], {}),
        (ATTENTION, {"attention": 2.0}),
        (["re:.*self_attn.*"], {"attention": 2.0}),
        (["re:.*self_attn"], {"attention": 2.0}),
        (["re:.*self_attn$"], {"attention": 2.0}),
        (["re:.*(self|cross)_attn"], {"attention": 2.0}),
        (["re:.*mlp\\.experts$"], {"experts": 2.0}),
        (["re:.*mlp\\.exp$", "re:.*self$"], {}),
        (["model.layers.1?.*"], "layers 10 to 19"),
        (["re:model.layers.0.*", "model.layers.1"], "layers 0 and 1"),
        (["re:^model\\.layers\\.\\d+\\.self_attn\\.(q|k|v|o)_proj$"], {"attention": 2.0}),
        (["self_attn"], {"attention": 2.0}),
        (["model.layers.*.self_attn"], {"attention": 2.0}),
        (["language_model.model.layers.0", "model.language_model.layers.1*"], "layers 0, 1 and 10 to 19"),
        (["re:.*layers\\.(0|1)\\..*"], "layers 0 and 1"),
        (["vision_model.model.layers.0.self_attn.q_proj", "vision_tower*", "mtp.layers.0*"], {}),
        (
            ["model.layers.48*", "model.layers.48.self_attn"],
            {},
        ),  # multi-token prediction, beyond the last one
        (["*.mlp.experts.*"], {"experts": 2.0}),
        (["mlp.experts"], {"experts": 2.0}),
        (["model.layers.0.self_attn.o_proj"], "32 of 72 parts of layer 0"),
        (["gate", "e_score_correction_bias"], {}),
    ],
)
def test_what_is_left_alone_stays_in_16_bits(tmp_path: Path, left_alone: list[str], kept: Any) -> None:
    shape = quantised(tmp_path, quant_method="fp8", modules_to_not_convert=left_alone)
    if isinstance(kept, str):
        shares = {"layers 0 and 1": 2, "layers 10 to 19": 10, "layers 0, 1 and 10 to 19": 12}
        share = shares.get(kept, 32 / 72) / 48
        assert shape.weights.attention == pytest.approx(1 + share)
        assert shape.weights.experts == pytest.approx(1 + share if "layers" in kept else 1)
        text = f"{100 - 100 * share:.0f} % of the attention weights are quantised: priced by their mean"
        assert text in shape.notes
    else:
        sizes = {kind: getattr(shape.weights, kind) for kind in ("attention", "experts")}
        assert sizes == {"attention": 1.0, "experts": 1.0} | kept
        assert shape.notes == ()


def test_dense_layers_and_shared_experts_can_be_left_alone_by_themselves(tmp_path: Path) -> None:
    kept = ["model.layers.0.mlp.*", "re:.*shared_experts.*"]
    weights = quantised(tmp_path, "llada2.0-mini", quant_method="fp8", modules_to_not_convert=kept).weights
    assert (weights.attention, weights.dense, weights.shared, weights.experts) == (1.0, 2.0, 2.0, 1.0)


def test_a_third_of_the_feed_forward_counts_a_third(tmp_path: Path) -> None:
    for matrix in ("gate", "up", "down"):
        kept = [
            f"re:.*mlp\\.{matrix}_proj$",
            f"re:.*experts\\.{matrix}_proj$",
            f"shared_experts.{matrix}_proj",
        ]
        shape = quantised(tmp_path, "llada2.0-mini", quant_method="fp8", modules_to_not_convert=kept)
        weights = shape.weights
        assert [weights.dense, weights.shared, weights.experts] == pytest.approx([4 / 3] * 3)
        assert sum("67 % of the" in note for note in shape.notes) == 3


def test_only_the_targets_of_a_group_are_quantised(tmp_path: Path) -> None:
    weights = quantised(tmp_path, **compressed(FLOAT_8, targets=["re:.*mlp\\.experts.*"])).weights
    assert (weights.attention, weights.experts, weights.head) == (2.0, 1.0, 2.0)
    weights = quantised(tmp_path, **compressed(FLOAT_8, targets=["lm_head", "self_attn"])).weights
    assert (weights.attention, weights.experts, weights.head) == (1.0, 2.0, 1.0)


def test_at_most_makes_large_weights_smaller_and_leaves_small_ones() -> None:
    weights = Weights(2.0, 1.0, 0.5, 2.0, 2.0, "fp8")
    assert weights.at_most(1.0) == Weights(1.0, 1.0, 0.5, 1.0, 2.0, "fp8")
    assert weights.at_most(0.5) == Weights(0.5, 0.5, 0.5, 0.5, 2.0, "fp8")


@pytest.mark.parametrize("scheme", ["FP8", {"num_bits": 8, "type": "float", "dynamic": False}])
def test_an_eight_bit_kv_cache_holds_twice_as_much(tmp_path: Path, scheme: Any) -> None:
    fp8 = quantised(tmp_path, "llama-3.1-8b", quant_method="fp8", kv_cache_scheme=scheme)
    plain = quantised(tmp_path, "llama-3.1-8b", quant_method="fp8", kv_cache_scheme=None)
    assert fp8.kv_bytes_per_token * 2 == plain.kv_bytes_per_token == 131_072
    assert "the KV cache takes 8 bits" in fp8.notes[0]
    blocks = [kv_capacity(shape, load_gpu("h100")).blocks for shape in (fp8, plain)]
    assert blocks[0] // 2 == blocks[1]


def test_quantisation_beside_the_language_part_is_that_of_the_language_part(tmp_path: Path) -> None:
    quantisation = compressed(FLOAT_8, activations=FLOAT_8, ignore=["language_model.lm_head"])
    inner = values_of("qwen3-30b-a3b", torch_dtype=..., tie_word_embeddings=...)
    outer = {"text_config": inner, "torch_dtype": "float32", "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(outer | {"quantization_config": quantisation}))
    shape = load_model("mine", tmp_path)
    assert shape.weights == Weights.of(1.0, "fp8", head=4.0)
    assert (shape.dtype_bytes, shape.tied_embeddings) == (4, True)


def test_the_second_file_of_modelopt_is_read(tmp_path: Path) -> None:
    fields = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", *ATTENTION]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": fields}))
    for base in ({}, {"quantization_config": {"quant_algo": "NVFP4", "ignore": fields["exclude_modules"]}}):
        shape = load_model("mine", config(tmp_path, "qwen3-30b-a3b", **base))
        assert shape.weights == Weights(2.0, 0.5625, 0.5625, 0.5625, 2.0, "fp4")
        assert shape.kv_dtype_bytes == 1


def test_what_one_of_two_files_leaves_open_the_other_one_says(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"kv_cache_quant_algo": "FP8", "exclude_modules": ATTENTION}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": fields}))
    shape = quantised(tmp_path, quant_algo="FP8", kv_cache_quant_algo=None)
    assert (shape.weights.attention, shape.weights.experts, shape.kv_dtype_bytes) == (2.0, 1.0, 1)


def test_the_language_part_is_described_by_itself_where_it_is(tmp_path: Path) -> None:
    fp8 = {"quant_method": "fp8"}
    inner = values_of("qwen3-30b-a3b", torch_dtype="bfloat16", quantization_config=fp8)
    outer = {"text_config": inner, "torch_dtype": "float32", "quantization_config": fp8}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    shape = load_model("mine", tmp_path)
    assert (shape.dtype_bytes, shape.weights) == (2, Weights.of(1.0, "fp8"))
    flat = values_of("qwen3-30b-a3b") | {"text_config": {"num_hidden_layers": 3}}
    (tmp_path / "config.json").write_text(json.dumps(flat))
    assert load_model("mine", tmp_path).layers == 48


def test_a_bundled_model_takes_no_notice_of_files_beside_it() -> None:
    assert load_model("llama-3.1-70b").weights == Weights()


@pytest.mark.parametrize(
    ("quantisation", "message"),
    [
        ({"quant_method": "magic"}, "quant_method: unknown quantisation (found 'magic')"),
        ({"bits": 4}, "quant_method: missing"),
        ({"quant_method": "gptq", "bits": 5}, "bits: unusual number of bits"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size: must be a whole number"),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {"-:lm_head": {}}},
            "dynamic: weights in several formats",
        ),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quant_algo: not modelled"),
        ({"quant_method": "compressed-tensors"}, "config_groups: missing"),
        (compressed(FLOAT_8, activations={"num_bits": 4}), "group_0.input_activations: not modelled"),
        (
            compressed(FLOAT_8, targets=["re:.*vision.*"]),
            "config_groups: quantises no weights that are known",
        ),
        (compressed(FLOAT_8, sparsity_config={"format": "dense"}), "sparsity_config: sparse weights"),
        (
            {"quant_method": "fp8", "ignored_layers": ["model.layers.0.mlp.experts.7"]},
            "names a single expert",
        ),
        (
            {"quant_method": "fp8", "ignored_layers": [7]},
            "ignored_layers: must be a list of strings (found 7)",
        ),
        (compressed(FLOAT_8, ignore=["re:(.*)+x"]), "ignore: names of modules that are not understood"),
        (compressed(FLOAT_8, ignore=["re:(a+)+$"]), "ignore: names of modules that are not understood"),
        (compressed({"num_bits": 8, "type": "posit"}), "weights.type: unknown type (found 'posit')"),
        (compressed(FLOAT_8, ignore=["re:lay+ers"]), "ignore: names of modules that are not understood"),
        ({"quant_method": "fp8", "kv_cache_scheme": "NVFP4"}, "kv_cache_scheme: KV cache in a format"),
        ({"quant_method": "fp8", "kv_cache_quant_algo": "INT4"}, "kv_cache_quant_algo: KV cache in a format"),
        (
            {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 4}},
            "kv_cache_scheme: KV cache in a format",
        ),
        (
            {"quant_method": "fp8", "ignore": ["a"], "exclude_modules": ["b"]},
            "exclude_modules: contradicts ignore",
        ),
    ],
)
def test_a_quantisation_that_is_not_understood_is_refused(
    tmp_path: Path, quantisation: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as error:
        quantised(tmp_path, **quantisation)
    assert "config.json: quantization_config." in str(error.value)
    assert message in str(error.value)


def test_groups_of_modules_have_formats_of_their_own(tmp_path: Path) -> None:
    groups = {
        "group_0": {"weights": FLOAT_8, "targets": ["re:.*self_attn.*"]},
        "group_1": {"weights": INT_4, "targets": ["re:.*experts.*"]},
    }
    weights = quantised(tmp_path, quant_method="compressed-tensors", config_groups=groups).weights
    assert (weights.attention, weights.dense) == (1.0, 2.0)
    assert 0.5 <= weights.experts < 0.6
    assert weights.format_of(weights.attention) == weights.format_of(weights.experts) == "fp16"


@pytest.mark.parametrize("bits", ["FP8", "NVFP4"])
def test_modules_in_formats_of_their_own_have_their_bytes(tmp_path: Path, bits: str) -> None:
    """ModelOpt's mixed precision: an algorithm by module, of which one may name experts as a whole."""
    layers = {
        f"model.layers.{layer}.{module}": {"quant_algo": algorithm, "group_size": 16}
        for layer in range(48)
        for module, algorithm in {"self_attn.o_proj": "FP8", "mlp.experts": bits}.items()
    }
    weights = quantised(tmp_path, quant_algo="MIXED_PRECISION", quantized_layers=layers).weights
    assert weights.output == 1.0
    assert weights.experts == {"FP8": 1.0, "NVFP4": 0.5625}[bits]
    assert weights.format_of(1.0) == "fp8"
    assert weights.format_of(weights.experts) == {"FP8": "fp8", "NVFP4": "fp4"}[bits]


def test_what_is_not_named_in_mixed_precision_stays_or_has_the_checkpoints_method(tmp_path: Path) -> None:
    layers = {f"model.layers.{layer}.mlp.experts": {"quant_algo": "NVFP4"} for layer in range(48)}
    mixed = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    assert quantised(tmp_path, **mixed).weights.attention == 2.0
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    weights = quantised(tmp_path, **mixed, **blocks).weights
    assert (weights.attention, weights.experts, weights.block_scales) == (1.0, 0.5625, True)


def test_as_many_bits_in_two_formats_are_refused(tmp_path: Path) -> None:
    layers = {
        "model.layers.0.mlp.experts": {"quant_algo": "NVFP4"},
        "model.layers.1.mlp.experts": {"quant_algo": "W4A16_NVFP4"},
    }
    problem = "quantized_layers: weights of as many bits in several formats are not modelled"
    with pytest.raises(InputError, match=problem):
        quantised(tmp_path, quant_algo="MIXED_PRECISION", quantized_layers=layers)


def test_an_algorithm_that_is_not_known_is_named_with_its_module(tmp_path: Path) -> None:
    layers = {"model.layers.0.mlp.experts": {"quant_algo": "W3A3"}}
    with pytest.raises(InputError, match=r"experts\.quant_algo: not modelled \(found 'W3A3'\)"):
        quantised(tmp_path, quant_algo="MIXED_PRECISION", quantized_layers=layers)


def test_two_files_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    with pytest.raises(
        InputError, match=r"hf_quant_config\.json: quantization\.quant_algo: contradicts config\.json"
    ):
        quantised(tmp_path, quant_algo="FP8")
    inner = values_of(quantization_config={"quant_method": "fp8"})
    outer = {"text_config": inner, "quantization_config": {"quant_method": "awq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    with pytest.raises(
        InputError, match=r"quantization_config: contradicts text_config\.quantization_config"
    ):
        load_model("mine", tmp_path)


def test_settings_that_are_not_known_are_reported(tmp_path: Path) -> None:
    shape = quantised(tmp_path, quant_method="fp8", twist=2, turn=None)
    assert shape.notes == ("quantisation settings not known, taken to change nothing: twist",)
