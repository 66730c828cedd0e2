"""Model profiles against what their makers publish, and strict reading of HuggingFace configs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from model_configs import config, values_of

from blis_py.errors import InputError
from blis_py.files import bundled
from blis_py.files.profiles import find_profile, known_names
from blis_py.hardware.capacity import kv_capacity
from blis_py.hardware.gpu import GIB, load_gpu
from blis_py.hardware.layout import Layout
from blis_py.hardware.memory_overheads import VLLM_OVERHEADS
from blis_py.models.model_shape import config_name, known_models, load_model, same_sizes, shape_from_config
from blis_py.planning.serving import published_model

PUBLISHED_BILLIONS = {
    "codellama-34b": (33.74, 33.74),
    "gpt-oss-120b": (116.83, 5.71),  # 5.13 active without the embedding, as its card counts
    "kimi-k2-thinking": (1026.4, 32.9),
    "llada2.0-mini": (16.26, 1.43),
    "llama-2-7b": (6.74, 6.74),
    "llama-2-13b": (13.02, 13.02),
    "llama-2-70b": (68.98, 68.98),
    "llama-3.1-8b": (8.03, 8.03),
    "llama-3.1-70b": (70.55, 70.55),
    "mistral-nemo-12b": (12.25, 12.25),
    "mixtral-8x7b": (46.70, 12.88),
    "qwen2.5-7b": (7.62, 7.62),
    "qwen2.5-7b-instruct": (7.62, 7.62),
    "qwen3-0.6b": (0.596, 0.596),
    "qwen3-1.7b": (1.72, 1.72),
    "qwen3-8b": (8.19, 8.19),
    "qwen3-14b": (14.77, 14.77),
    "qwen3-32b": (32.76, 32.76),
    "qwen3-30b-a3b": (30.53, 3.35),
    "qwen3-30b-a3b-fp8": (30.53, 3.35),
    "qwen3-30b-a3b-instruct-2507": (30.53, 3.35),
    "qwen3-32b-fp8": (32.76, 32.76),
    "qwen3-235b-a22b": (235, 22),
    "qwen3-235b-a22b-fp8": (235, 22),
    "qwen3-235b-a22b-nvfp4": (235, 22),
    "qwen3-coder-480b-a35b": (480, 35),
    "yi-34b": (34.4, 34.4),
    "llama-3.1-70b-fp8": (70.6, 70.6),
    "llama-3.1-405b": (406, 406),
    "llama-4-scout": (108, 17),
    "llama-4-scout-fp8": (108, 17),
    "llama-4-maverick": (400, 17),
    "mixtral-8x22b": (141, 39),
    "gpt-oss-20b": (20.91, 4.19),  # 3.61 active without the embedding, as its card counts
    "minimax-m2.5": (229, 11),  # 10 active without the embeddings
    "minimax-m2.5-nvfp4": (229, 11),
    "deepseek-r1": (671, 37.5),
    "deepseek-v2-lite": (15.7, 2.66),  # 2.4 active without the embedding
    "deepseek-v3": (671, 37.5),
    "deepseek-v3.2": (671.9, 38.3),
    "glm-5": (744, 41.8),
    "glm-5.1": (744, 41.8),
    "glm-5.2": (743.4, 41.3),  # one indexer for four layers
    "glm-5.3": (743.4, 41.3),
    "glm-4.5": (353, 33.6),
    "glm-4.5-air": (107, 13.4),  # 12 active without the embeddings
    "glm-4.7": (353, 33.6),
    "glm-4.7-flash": (29.9, 3.9),
    "deepseek-v4-flash": (284, 13.8),
    "deepseek-v4-pro": (1573, 49.8),
    "kimi-k3": (2780, 105.4),
    "minimax-m3": (426, 26.0),
    "nemotron-3-nano-30b-a3b": (31.6, 3.6),
    "nemotron-3-super-120b-a12b-fp8": (120.7, 12.8),
    "nemotron-3-super-120b-a12b-nvfp4": (120.7, 12.8),
    "nemotron-3-ultra-550b-a55b": (549.3, 56.1),
    "nemotron-3-ultra-550b-a55b-nvfp4": (549.3, 56.1),
    "qwen3.6-27b": (26.9, 26.9),
    "qwen3.6-35b-a3b": (34.7, 3.45),
    "qwen3.8-2.4t-a95b": (2420, 95.3),
    "qwen3-next-80b-a3b": (79.7, 3.9),
    "qwen3-4b": (4.02, 4.02),
    "qwen2.5-72b": (72.7, 72.7),
    "gemma-3-4b": (3.88, 3.88),
    "gemma-3-12b": (11.8, 11.8),
    "gemma-3-27b": (27.0, 27.0),
    "gemma-4-26b-a4b": (25.2, 3.8),
    "gemma-4-31b": (30.7, 30.7),
    "mistral-7b": (7.25, 7.25),
    "phi-4": (14.66, 14.66),
    "llama-3-8b": (8.03, 8.03),
    "llama-3.2-3b": (3.21, 3.21),
    "llama-3.2-1b": (1.24, 1.24),
    "mistral-small-3-24b": (23.6, 23.6),
    "mistral-small-3.2-24b": (23.6, 23.6),  # 24 with its encoder of images
    "qwen2.5-14b": (14.7, 14.7),
    "qwen2.5-32b": (32.5, 32.5),
    "step-3.5-flash": (196.9, 12.0),  # 11 active without the embeddings
    "step-3.7-flash": (196.9, 12.0),
    "ernie-4.5-21b-a3b": (21.8, 3.3),
    "mimo-v2-flash": (309, 15.4),
    "kimi-linear-48b-a3b": (49.3, 3.66),
    "granite-4.0-h-small": (32.2, 8.8),
    "qwen3-vl-235b-a22b": (235, 22.2),
    "deepseek-v3.1-nvfp4": (671, 37.5),
    "kimi-k2": (1026, 32.9),
    "kimi-k2.5": (1026, 32.9),
    "kimi-k2.5-nvfp4": (1026, 32.9),
    "qwen3.5-27b": (26.9, 26.9),
    "qwen3.5-35b-a3b": (34.7, 3.45),
    "qwen3.5-122b-a10b": (122, 9.8),
    "qwen3.5-122b-a10b-nvfp4": (122, 9.8),
    "qwen3.5-397b-a17b": (396, 17.3),
    "qwen3.5-397b-a17b-nvfp4": (396, 17.3),
}


def test_every_profile_has_a_published_size_to_check_against() -> None:
    assert set(PUBLISHED_BILLIONS) == set(known_models())


@pytest.mark.parametrize(("name", "sizes"), PUBLISHED_BILLIONS.items())
def test_parameter_counts_are_the_published_ones(name: str, sizes: tuple[float, float]) -> None:
    shape = load_model(name)
    assert shape.parameters / 1e9 == pytest.approx(sizes[0], rel=0.02)
    assert shape.active_parameters / 1e9 == pytest.approx(sizes[1], rel=0.02)


@pytest.mark.parametrize(
    ("spelling", "layers", "hidden"),
    [
        ("qwen/qwen3-14b", 40, 5120),
        ("Qwen/Qwen3-14B", 40, 5120),
        ("qwen3_14b", 40, 5120),
        ("meta-llama/Llama-3.1-8B-Instruct", 32, 4096),
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", 80, 8192),
        ("llama-3.1-8b", 32, 4096),
        ("meta-llama/Llama-2-7b-hf", 32, 4096),
        ("codellama/CodeLlama-34b-Instruct-hf", 48, 8192),
        ("mistralai/Mixtral-8x7B-v0.1", 32, 4096),
        ("mistralai/Mistral-Nemo-Instruct-2407", 40, 5120),
        ("openai/gpt-oss-120b", 36, 2880),
        ("inclusionAI/LLaDA2.0-mini", 20, 2048),
        ("Qwen/Qwen3-14B-Instruct", 40, 5120),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", 94, 4096),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", 48, 2048),
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8", 80, 8192),
        ("meta-llama/Llama-3.3-70B-Instruct", 80, 8192),
    ],
)
def test_a_model_is_found_by_its_usual_spellings(spelling: str, layers: int, hidden: int) -> None:
    shape = load_model(spelling)
    assert (shape.layers, shape.hidden, shape.name) == (layers, hidden, spelling)


_OTHER_FORMATS = {
    "Qwen3-14B-2": "qwen3-14b",
    "Qwen3-14B-Thinking": "qwen3-14b",
    "Qwen/Qwen3-14B-GGUF": "qwen3-14b",
    "Qwen3-14B-MLX-4bit": "qwen3-14b",
    "someone/Qwen3-14B-AQLM": "qwen3-14b",
    "Meta-Llama-3.1-8B-Instruct-GGUF": "llama-3.1-8b",
    "cognitivecomputations/DeepSeek-V3-AWQ": "deepseek-v3",
    "zai-org/GLM-5.2-AWQ": "glm-5.2",
    "unsloth/DeepSeek-V3-bf16": "deepseek-v3",
    "nvidia/Kimi-K2-Thinking-NVFP4": "kimi-k2-thinking",
    "unsloth/gpt-oss-120b-BF16": "gpt-oss-120b",
}
"""Models in a format of their own, and the nearest bundled one, whose format may differ."""


@pytest.mark.parametrize(("spelling", "nearest"), _OTHER_FORMATS.items())
def test_a_model_in_another_format_is_refused_with_the_nearest_one(spelling: str, nearest: str) -> None:
    with pytest.raises(InputError, match=f"--model-config .*; the nearest bundled one is {nearest}"):
        load_model(spelling)


@pytest.mark.parametrize(
    ("spelling", "nearest"),
    [
        ("Qwen3.6", "qwen3.6-27b, qwen3.6-35b-a3b"),
        ("nvidia/Nemotron-3-Super", "nemotron-3-super-120b-a12b-fp8, nemotron-3-super-120b-a12b-nvfp4"),
        ("google/gemma-4", "gemma-4-31b, gemma-4-26b-a4b"),
        ("Mistral-Small", "mistral-small-3-24b, mistral-small-3.2-24b"),
        ("R1-Distill", "qwen2.5-7b, llama-3.1-8b, qwen2.5-14b"),
        ("deepseek-r9", "deepseek-r1, deepseek-v3"),
        ("gpt-5", "gpt-oss-120b, gpt-oss-20b"),
    ],
)
def test_a_family_is_answered_with_its_models(spelling: str, nearest: str) -> None:
    with pytest.raises(InputError, match=f"use --model-config .*; the nearest bundled ones are {nearest}"):
        load_model(spelling)


@pytest.mark.parametrize(
    ("spelling", "stem"),
    [
        ("zai-org/GLM-4.6", "glm-4.7"),
        ("Mistral-Small-3.2-24B-Instruct-2506", "mistral-small-3.2-24b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b"),
        ("Qwen/QwQ-32B", "qwen2.5-32b"),
        ("MiniMax-M2", "minimax-m2.5"),
        ("Qwen3-Next", "qwen3-next-80b-a3b"),
        ("Qwen3-Coder-30B", "qwen3-30b-a3b-instruct-2507"),
        ("DeepSeek-R1-Distill-Llama-70B", "llama-3.1-70b"),
        ("Nemotron-3-Nano", "nemotron-3-nano-30b-a3b"),
        ("DeepSeek-V4", "deepseek-v4-pro"),
    ],
)
def test_usual_names_are_known(spelling: str, stem: str) -> None:
    assert same_sizes(load_model(spelling), load_model(stem))


def test_kimi_k2_thinking_has_experts_in_four_bits_and_fits_eight_h200() -> None:
    shape = load_model("moonshotai/Kimi-K2-Thinking")
    assert same_sizes(shape, replace(load_model("kimi-k2.5"), image_encoder=None))
    capacity = kv_capacity(shape, load_gpu("h200"), 8, overheads=VLLM_OVERHEADS, layout=Layout(8, ep=8))
    assert 69 < capacity.weight_bytes / GIB < 73
    assert published_model("moonshotai/Kimi-K2-Thinking") == "moonshotai/Kimi-K2-Thinking"


def test_start_commands_name_the_given_variant() -> None:
    assert published_model("Qwen/Qwen3-235B-A22B-Instruct-2507") == "Qwen/Qwen3-235B-A22B-Instruct-2507"


def test_a_variant_is_priced_as_what_it_was_made_from_and_reports_it() -> None:
    shape = load_model("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8")
    assert same_sizes(shape, load_model("qwen3-235b-a22b-fp8"))
    assert shape.weights.experts == 1
    text = "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8 is priced with the configuration of qwen3-235b-a22b-fp8"
    assert any(note.startswith(text) for note in shape.notes)
    assert load_model("meta-llama/Llama-3.1-8B-Instruct").notes == ()  # listed: the very same


def test_a_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model-1.5"
    folder.mkdir()
    shutil.copy(find_profile("models", "qwen3-8b"), folder / "config.json")
    shape = load_model(str(folder))
    assert (shape.name, same_sizes(shape, load_model("qwen3-8b"))) == ("My-Model-1.5", True)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("ckpt/Llama-3.1-8B", "Llama-3.1-8B"),
        ("ckpt/Llama-3.1-8B/config.json", "Llama-3.1-8B"),
        ("configs/meta-llama--Llama-3.1-8B_config.json", "meta-llama/Llama-3.1-8B"),
        ("configs/mine.json", "mine"),
        ("hub/models--Qwen--Qwen3-8B/snapshots/b968826d9c46", "Qwen/Qwen3-8B"),
        ("hub/models--Qwen--Qwen3-8B/snapshots/b968826d9c46/config.json", "Qwen/Qwen3-8B"),
    ],
)
def test_a_config_is_called_as_its_checkpoint_is(path: str, name: str) -> None:
    assert config_name(path) == name


def test_an_unknown_name_is_refused_with_what_can_be_given_instead() -> None:
    listed = "--model-config with a HuggingFace config.json, or one that blis models lists"
    with pytest.raises(InputError, match=rf"--model: unknown model.*xyz.*{listed}"):
        load_model("xyz")
    with pytest.raises(InputError, match=r"the nearest bundled ones are h100, "):
        load_gpu("h1000")
    with pytest.raises(InputError, match=r"the nearest bundled ones are rtx-4090"):
        load_gpu("rtx4080")


@pytest.mark.parametrize(
    ("name", "kv_bytes"), [("qwen3-14b", 163_840), ("llama-3.1-8b", 131_072), ("llada2.0-mini", 40_960)]
)
def test_kv_bytes_per_token_count_keys_and_values_of_all_layers(name: str, kv_bytes: int) -> None:
    assert load_model(name).kv_bytes_per_token == kv_bytes


def test_the_first_layer_of_llada_is_dense() -> None:
    shape = load_model("llada2.0-mini")
    assert (shape.moe_layers, shape.dense_layers, shape.shared_intermediate) == (19, 1, 512)


def test_sparse_layers_are_those_neither_listed_as_dense_nor_skipped_by_the_step(tmp_path: Path) -> None:
    moe = {"num_hidden_layers": 8, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    assert load_model("mine", config(tmp_path, "qwen3-30b-a3b", **moe)).moe_layers == 3  # 1, 5 and 7
    listed = config(tmp_path, "qwen3-30b-a3b", num_hidden_layers=8, mlp_only_layers=[0, 7])
    assert load_model("mine", listed).moe_layers == 6


@pytest.mark.parametrize(("experts", "sparse_layers"), [(1, 0), (2, 32), (3, 32)])
def test_two_experts_make_a_model_sparse(tmp_path: Path, experts: int, sparse_layers: int) -> None:
    path = config(tmp_path, "mixtral-8x7b", num_local_experts=experts, num_experts_per_tok=min(experts, 2))
    shape = load_model("mine", path)
    assert (shape.is_moe, shape.moe_layers) == (sparse_layers > 0, sparse_layers)
    assert shape.parameters == shape.active_parameters + 32 * max(experts - 2, 0) * shape.expert_parameters


def test_a_model_whose_first_layers_are_all_dense_has_no_sparse_ones(tmp_path: Path) -> None:
    assert load_model("mine", config(tmp_path, "llada2.0-mini", first_k_dense_replace=20)).moe_layers == 0


def test_a_config_of_ones_own_is_read_from_file_or_folder(tmp_path: Path) -> None:
    path = config(tmp_path, num_hidden_layers=12)
    assert load_model("mine", path) == load_model("mine", tmp_path)
    assert load_model("mine", path).layers == 12


def test_the_language_part_of_a_multimodal_config_is_used(tmp_path: Path) -> None:
    values = json.loads(config(tmp_path).read_text())
    (tmp_path / "config.json").write_text(json.dumps({"text_config": values, "vision_config": {}}))
    assert load_model("mine", tmp_path) == load_model("mine", config(tmp_path))


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        (None, 40_960),
        ({"rope_type": "llama3", "factor": 8.0}, 40_960),
        ({"type": "linear", "factor": 2.0}, 81_920),
        ({"type": "linear", "factor": 2.0, "original_max_position_embeddings": 1000}, 81_920),
        ({"rope_type": "dynamic", "factor": 2}, 81_920),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}, 131_072),
        ({"rope_type": "yarn", "factor": 4.0}, 163_840),
    ],
)
def test_rope_scaling_stretches_the_length_limit(
    tmp_path: Path, rope: dict[str, Any] | None, limit: int
) -> None:
    assert load_model("mine", config(tmp_path, rope_scaling=rope)).max_position_embeddings == limit
    newer = config(tmp_path, rope_scaling=..., rope_parameters=rope)
    assert load_model("mine", newer).max_position_embeddings == limit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": ...}, "config.json: hidden_size: missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: must be a whole number of at least 1 (found 0)"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers: must be a whole number"),
        ({"vocab_size": "many"}, "vocab_size: must be a whole number"),
        ({"num_key_value_heads": 7}, "num_key_value_heads: must divide num_attention_heads (40)"),
        ({"head_dim": ..., "num_attention_heads": 48}, "num_attention_heads: must divide hidden_size (5120)"),
        ({"torch_dtype": "int3"}, "torch_dtype: unknown dtype"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: must be true or false"),
        ({"quantization_config": {"quant_method": "magic"}}, "quantization_config.quant_method: unknown"),
        ({"quantization_config": {"bits": 4}}, "quantization_config.quant_method: missing"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 5}}, "quantization_config.bits: unusual"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "rope_scaling.factor: must be positive"),
        ({"rope_scaling": 8}, "rope_scaling: must be an object"),
        ({"base": "mixtral-8x7b", "num_experts_per_tok": 9}, "num_experts_per_tok: more than the 8 experts"),
        ({"base": "mixtral-8x7b", "num_experts_per_tok": ...}, "num_experts_per_tok: missing"),
        ({"base": "mixtral-8x7b", "num_experts": 9}, "num_experts: contradicts num_local_experts (found 9)"),
        (
            {"base": "qwen3-30b-a3b", "mlp_only_layers": [48]},
            "mlp_only_layers: must be numbers of the 48 layers",
        ),
        ({"base": "qwen3-30b-a3b", "mlp_only_layers": [True]}, "mlp_only_layers: must be numbers"),
        ({"base": "qwen3-30b-a3b", "mlp_only_layers": ["1"]}, "mlp_only_layers: must be numbers"),
        (
            {"base": "gpt-oss-120b", "experts_per_token": 5},
            "experts_per_token: contradicts num_experts_per_tok",
        ),
        (
            {"base": "llada2.0-mini", "first_k_dense_replace": 21},
            "first_k_dense_replace: more than the 20 layers",
        ),
        ({"layer_types": ["full_attention"] * 39}, "layer_types: must name each of the 40 layers (found 39)"),
    ],
)
def test_a_bad_config_is_refused_by_file_and_key(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as error:
        load_model("mine", config(tmp_path, **changes))
    assert message in str(error.value)


@pytest.mark.parametrize("where", [(), ("rope_scaling",), ("quantization_config",)])
@pytest.mark.parametrize("key", [None, 3, 1.5, True])
def test_a_key_that_is_no_text_is_refused(where: tuple[str, ...], key: object) -> None:
    values: dict[Any, Any] = {key: "x"}
    for name in where:
        values = {name: {"rope_type": "linear", "factor": 2, "quant_method": "fp8", **values}}
    with pytest.raises(
        InputError, match=rf"profile.yaml: {'.'.join((*where, str(key)))}: a key must be text"
    ):
        shape_from_config("mine", {**values_of(), **values}, Path("profile.yaml"))


def test_a_model_is_called_as_its_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "Qwen2.5-7B"
    folder.mkdir()
    assert config_name(folder) == config_name(config(folder)) == "Qwen2.5-7B"
    monkeypatch.chdir(folder)
    assert config_name(".") == config_name("config.json") == "Qwen2.5-7B"
    assert config_name(folder / "mine.json") == "mine"
    (folder / "config.json").rename(tmp_path / "blob")
    (folder / "config.json").symlink_to(tmp_path / "blob")
    assert config_name(folder / "config.json") == "Qwen2.5-7B"


def test_an_unreadable_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_model("mine", tmp_path / "absent.json")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        load_model("mine", tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="must be a JSON object"):
        load_model("mine", tmp_path)


@pytest.mark.parametrize("kind", ["gpus", "models"])
def test_every_listed_spelling_leads_to_its_profile(kind: str) -> None:
    names = yaml.safe_load((bundled.root("profiles") / kind / "names.yaml").read_text())
    assert set(names) == set(known_names(kind))
    for stem, spellings in names.items():
        assert [find_profile(kind, spelling).stem for spelling in spellings] == [stem] * len(spellings)
