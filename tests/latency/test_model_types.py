"""A config.json is understood as a whole: what is not modelled is refused, what is not known is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_configs import config, values_of

from blis_py.errors import InputError
from blis_py.files import bundled
from blis_py.models.model_shape import known_models, load_model
from blis_py.models.model_types import MODEL_TYPES, NOT_MODELLED, READ, REFUSED_TYPES, WITHOUT_EFFECT

LAYERS = 40
"""Of the model that is changed below."""


def test_the_lists_of_keys_do_not_contradict_each_other() -> None:
    own = {key for known in MODEL_TYPES.values() for key in (*known.reads, *known.without_effect)}
    lists = [set(READ), set(WITHOUT_EFFECT), set(NOT_MODELLED), own]
    for i, keys in enumerate(lists):
        for others in lists[i + 1 :]:
            assert not keys & others
    assert not set(MODEL_TYPES) & set(REFUSED_TYPES)


def test_of_bundled_models_every_key_is_known() -> None:
    notes = [note for name in known_models() for note in load_model(name).notes]
    assert [note for note in notes if "not known" in note] == []


def test_every_key_of_the_engines_own_checkpoints_is_known() -> None:
    for folder in (bundled.root("profiles").parent / "engine" / "tiny" / "checkpoints").iterdir():
        assert load_model(folder.name, folder).notes == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_lora_rank": 512}, "kv_lora_rank: is not known of the model_type 'qwen3' (found 512)"),
        ({"linear_num_value_heads": 32}, "linear_num_value_heads: is not known of the model_type 'qwen3'"),
        ({"linear_attn_config": {"kda": 1}}, "linear_attn_config: is not known of the model_type 'qwen3'"),
        ({"ssm_cfg": {"layer": "Mamba1"}}, "ssm_cfg: state-space layers are not modelled"),
        ({"lru_width": 2560}, "lru_width: recurrent layers are not modelled (found 2560)"),
        ({"index_topk": 2048}, "index_topk: is not known of the model_type 'qwen3' (found 2048)"),
        ({"num_kv_shared_layers": 20}, "num_kv_shared_layers: layers that share a KV cache are not modelled"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder: encoder-decoder models are not modelled"),
        ({"layer_types": ["linear_attention"] * LAYERS}, "layer_types: layers of this kind are not modelled"),
        ({"model_type": "minimax"}, "model_type: layers of linear attention are not modelled"),
        (
            {"model_type": "nemotron_h", "mamba_num_heads": 8, "max_window_layers": ...},
            "hybrid_override_pattern: missing",
        ),
        ({"model_type": "falcon"}, "model_type: feed-forward layers without a gate are not modelled"),
        ({"num_experts": 8}, "num_experts: is not known of the model_type 'qwen3' (found 8)"),
        ({"first_k_dense_replace": 3}, "first_k_dense_replace: is not known of the model_type 'qwen3'"),
        ({"model_type": 3}, "model_type: must be a string (found 3)"),
    ],
)
def test_what_is_not_modelled_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        load_model("mine", config(tmp_path, **changes))
    assert f"config.json: {message}" in str(error.value)


@pytest.mark.parametrize("nothing", [None, 0, False, [], {}, ""])
def test_a_key_that_states_nothing_changes_nothing(tmp_path: Path, nothing: Any) -> None:
    keys = dict.fromkeys((*NOT_MODELLED, "num_experts", "never_heard_of"), nothing)
    shape = load_model("mine", config(tmp_path, **keys))
    assert (shape, shape.notes) == (load_model("mine", config(tmp_path)), ())


def test_a_model_type_that_is_not_known_is_priced_with_a_note(tmp_path: Path) -> None:
    shape = load_model("mine", config(tmp_path, model_type="qwen9"))
    assert shape == load_model("mine", config(tmp_path))
    assert shape.notes == (
        "the model_type 'qwen9' of mine is not known: "
        "priced as a decoder of grouped-query attention and gated feed-forward layers",
    )
    assert "mine has no model_type" in load_model("mine", config(tmp_path, model_type=...)).notes[0]


def test_experts_of_a_model_type_that_is_not_known_are_counted(tmp_path: Path) -> None:
    sparse = load_model("mine", config(tmp_path, "qwen3-30b-a3b", model_type="qwen9_moe"))
    assert sparse == load_model("mine", config(tmp_path, "qwen3-30b-a3b"))


def test_keys_that_are_not_known_are_named(tmp_path: Path) -> None:
    shape = load_model("mine", config(tmp_path, **{f"twist_{i}": 1 for i in range(8)}))
    text = "twist_0, twist_1, twist_2, twist_3, twist_4, twist_5 and 2 more"
    assert shape.notes == (f"keys of config.json that are not known, taken to change nothing: {text}",)


def test_keys_that_a_terminal_would_act_on_are_printed_harmlessly(tmp_path: Path) -> None:
    odd = {"\x1b[2J": 1, "line\nbreak": 1, "\u202e": 1}
    note = load_model("mine", config(tmp_path, **odd)).notes[0]
    assert note.isprintable()
    assert note.endswith(r"\x1b[2J, line\nbreak, \u202e")


def test_llama_4_has_a_shared_expert_in_every_sparse_layer(tmp_path: Path) -> None:
    moe = {"model_type": "llama4_text", "num_local_experts": 16, "num_experts_per_tok": 1}
    moe |= {"interleave_moe_layer_step": 2, "intermediate_size_mlp": 34_816, "sliding_window": ...}
    cut = dict.fromkeys(("use_sliding_window", "max_window_layers"), ...)
    shape = load_model("mine", config(tmp_path, **moe, **cut))
    assert (shape.shared_intermediate, shape.shared_unsaid) == (17_408, True)
    assert (shape.moe_layers, shape.intermediate) == (20, 34_816)
    listed = load_model("mine", config(tmp_path, **moe, **cut, moe_layers=[1, 5, 9]))
    assert (listed.moe_layers, listed.dense_layers) == (3, 37)


QWEN3_NEXT: dict[str, Any] = {
    **{"model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120},
    **{"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_hidden_layers": 48},
    **{"num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151_936},
    **{"num_experts": 512, "num_experts_per_tok": 10, "max_position_embeddings": 262_144},
    **{"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_conv_kernel_dim": 4},
    **{"linear_key_head_dim": 128, "linear_value_head_dim": 128, "full_attention_interval": 4},
}
GEMMA2: dict[str, Any] = {
    **{"model_type": "gemma2", "hidden_size": 4608, "intermediate_size": 36_864, "num_hidden_layers": 46},
    **{"num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "vocab_size": 256_000},
    **{"max_position_embeddings": 8192, "sliding_window": 4096},
}
COMMAND_R_PLUS: dict[str, Any] = {
    **{"model_type": "cohere", "hidden_size": 12_288, "intermediate_size": 33_792, "num_hidden_layers": 64},
    **{"num_attention_heads": 96, "num_key_value_heads": 8, "vocab_size": 256_000},
    **{"max_position_embeddings": 131_072, "logit_scale": 0.83},
}
GEMMA3 = {
    "hidden_size": 2560,
    "intermediate_size": 10_240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
}
"""Of the 4B model: what is as in the library's class is left out."""


@pytest.mark.parametrize(
    ("values", "billions"),
    [(QWEN3_NEXT, 79.67), (GEMMA2, 27.23), (COMMAND_R_PLUS, 103.8), ({"text_config": GEMMA3}, 3.88)],
)
def test_what_a_type_leaves_out_of_its_config_is_known(
    tmp_path: Path, values: dict[str, Any], billions: float
) -> None:
    """The gate of attention, tied embeddings, and sizes that are the library's defaults."""
    (tmp_path / "config.json").write_text(json.dumps(values))
    shape = load_model("mine", tmp_path)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.001)
    assert not [note for note in shape.notes if "not known" in note]


def test_windows_of_gemma_2_are_in_every_other_layer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA2))
    assert load_model("mine", tmp_path).windowed_layers == 23


@pytest.mark.parametrize("key", ["n_moe_experts", "moe_width", "num_moe_experts"])
def test_experts_under_another_name_are_not_left_out_of_a_model(tmp_path: Path, key: str) -> None:
    """It would be a dense model of a sixth of its size."""
    with pytest.raises(InputError, match=f"{key}: may describe experts, of which none are understood"):
        load_model("mine", config(tmp_path, model_type="dots1", **{key: 64}))


# -- windows ---------------------------------------------------------------------------------------------

ON = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 10}


@pytest.mark.parametrize(
    ("changes", "windowed"),
    [
        ({"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 0}, 0),
        (ON | {"max_window_layers": 50}, 0),
        (ON, 30),
        (ON | {"sliding_window": 40_960}, 0),  # as long as the context
        (ON | {"layer_types": ["sliding_attention", "full_attention"] * 20}, 20),
        ({"model_type": "mistral", "sliding_window": 4096}, 40),
        ({"model_type": "gemma3_text", "sliding_window": 1024}, 34),
        ({"model_type": "gemma3_text", "sliding_window": 1024, "sliding_window_pattern": 4}, 30),
        ({"model_type": "llama4_text", "attention_chunk_size": 8192}, 30),
        (
            {"model_type": "llama4_text", "attention_chunk_size": 8192, "no_rope_layers": [1] * 35 + [0] * 5},
            35,
        ),
        ({"model_type": "llama4_text", "attention_chunk_size": None}, 0),
    ],
)
def test_layers_with_a_window_are_counted_and_reported(
    tmp_path: Path, changes: dict[str, Any], windowed: int
) -> None:
    values = values_of(sliding_window=...)
    if changes.get("model_type"):
        values = {k: v for k, v in values.items() if k not in ("use_sliding_window", "max_window_layers")}
    (tmp_path / "config.json").write_text(json.dumps(values | changes))
    shape = load_model("mine", tmp_path)
    assert shape.windowed_layers == windowed
    lines = [note for note in shape.notes if f"{windowed} of the 40 layers of mine attend to" in note]
    assert len(lines) == (windowed > 0)
    assert shape.sliding_window == (changes.get("sliding_window") or 8192) * (windowed > 0)


def test_layers_of_linear_attention_in_the_list_of_minimax_are_refused(tmp_path: Path) -> None:
    minimax = {"model_type": "minimax_m2", "max_window_layers": ..., "attn_type_list": [1, 0]}
    with pytest.raises(InputError, match="attn_type_list: layers of linear attention are not modelled"):
        load_model("mine", config(tmp_path, **minimax))


def test_the_longest_sequence_of_gemma_3_is_the_stated_one(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 8.0}
    cut = dict.fromkeys(("use_sliding_window", "max_window_layers"), ...)
    gemma = config(tmp_path, model_type="gemma3_text", rope_scaling=rope, **cut)
    assert load_model("mine", gemma).max_position_embeddings == 40_960


# -- files that mean harm --------------------------------------------------------------------------------

HOSTILE: list[tuple[str, Any]] = [
    *(
        (key, value)
        for key in ("num_hidden_layers", "vocab_size", "head_dim")
        for value in (10**30, -1, 1e9, "9")
    ),
    *(("max_position_embeddings", value) for value in (float("nan"), float("inf"), -(10**18), True, [8])),
    ("num_hidden_layers", 1001),
    ("num_key_value_heads", [8] * 40),
    ("rope_scaling", {"rope_type": "linear", "factor": float("nan")}),
    ("rope_scaling", {"rope_type": "linear", "factor": 1e300}),
    ("rope_scaling", {"rope_type": ["yarn"], "factor": 2.0}),
    ("rope_scaling", {"rope_type": "linear", "factor": "8"}),
    ("rope_scaling", {"rope_type": "linear", "factor": True}),
    ("model_type", {"a": 1}),
    ("torch_dtype", ["bfloat16"]),
    ("layer_types", "full_attention"),
    ("layer_types", [["full_attention"]] * LAYERS),
    ("quantization_config", [[["fp8"]]]),
    ("quantization_config", {"quant_method": ["fp8"]}),
    ("quantization_config", {"quant_method": "gptq", "bits": 10**40}),
    ("quantization_config", {"quant_method": "gptq", "bits": 4, "group_size": "x"}),
    ("quantization_config", {"quant_method": "fp8", "ignored_layers": [f"*{i}*" for i in range(10_000)]}),
    ("quantization_config", {"quant_method": "fp8", "ignored_layers": [f"re:{'(a|b)' * 40}"]}),
    ("quantization_config", {"quant_method": "fp8", "ignored_layers": [f"re:a{'(a|b)' * 6}"] * 1_000}),
    ("quantization_config", {"quant_method": "fp8", "ignored_layers": [f"x.{i}" for i in range(30_000)]}),
    ("quantization_config", {"quant_method": "compressed-tensors", "config_groups": {"g": None}}),
    ("quantization_config", {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": 8}}}),
    ("quantization_config", {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": float("nan")}}),
]


@pytest.mark.parametrize(("key", "value"), HOSTILE)
def test_a_hostile_value_is_refused_by_its_key(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(InputError) as error:
        load_model("mine", config(tmp_path, **{key: value}))
    assert f"config.json: {key}" in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000, "nested more than 64 levels deep"),
        ('{"a":' * 100_000, "nested more than 64 levels deep"),
        (b"\xff\xfe{", "not a UTF-8 text file"),
        ('{"num_hidden_layers": ' + "9" * 5000 + "}", "not JSON"),
        ('{"text_config": 3}', "text_config: must be an object"),
        ('{"text_config": {"text_config": {}}}', "text_config.num_hidden_layers: missing"),
        (" " * (1 << 26) + "{}", "larger than 64 MiB"),
        ("", "not JSON"),
    ],
    ids=["brackets", "braces", "bytes", "digits", "text_config", "nested", "large", "empty"],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as error:
        load_model("mine", file)
    assert str(error.value).startswith(f"{file}: {message}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "must be a JSON object"),
        ("{}", "quantization: missing"),
        ('{"quantization": []}', "quantization: must be an object"),
        ('{"quantization": {"quant_algo": 4}}', "quantization.quant_algo: must be a string"),
        (
            '{"quantization": {"quant_algo": "FP8", "exclude_modules": "lm_head"}}',
            "quantization.exclude_modules",
        ),
    ],
)
def test_a_second_file_that_makes_no_sense_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "hf_quant_config.json").write_text(content)
    with pytest.raises(InputError) as error:
        load_model("mine", config(tmp_path))
    assert f"hf_quant_config.json: {message}" in str(error.value)
