"""Names of checkpoints in formats that are not bundled: a bundled model in the format of their publisher."""

from __future__ import annotations

import pytest

from blis_py.errors import InputError
from blis_py.models.model_shape import load_model, same_sizes
from blis_py.models.published_formats import bundled_as, is_known, published_checkpoint


@pytest.mark.parametrize(
    ("name", "weight_bytes", "arithmetic", "kv_bytes"),
    [
        ("nvidia/Llama-3.1-8B-Instruct-FP8", 1.0, "fp8", 1),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", 0.5625, "fp4", 1),
        ("nvidia/Qwen3-14B-NVFP4", 0.5625, "fp4", 1),
        ("Qwen/Qwen3.5-397B-A17B-FP8", 1.0, "fp8", 2),
        ("Qwen/Qwen3-32B-AWQ", 0.5 + 2.5 / 128, "fp16", 2),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", 0.5 + 2.5 / 128, "fp16", 2),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", 1.0, "fp8", 2),
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", 1.0, "int8", 2),
        ("RedHatAI/Qwen3-8B-quantized.w4a16", 0.5 + 2 / 128, "fp16", 2),
        ("RedHatAI/Qwen3-8B-NVFP4", 0.5625, "fp4", 2),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", 0.5 + 2.5 / 128, "fp16", 2),
    ],
)
def test_a_name_says_the_format_of_its_publisher(
    name: str, weight_bytes: float, arithmetic: str, kv_bytes: int
) -> None:
    shape = load_model(name)
    assert (shape.weights.dense, shape.weights.arithmetic) == (weight_bytes, arithmetic)
    assert shape.kv_dtype_bytes == kv_bytes
    assert shape.weights.head == 2.0
    assert f"{name} is priced with the configuration of" in shape.notes[-1]


def test_publishers_of_one_name_differ() -> None:
    """NVIDIA's has one scale for a matrix, Qwen's, which is bundled, one for each block."""
    assert not load_model("nvidia/Qwen3-32B-FP8").weights.block_scales
    assert load_model("Qwen/Qwen3-32B-FP8").weights.block_scales
    assert bundled_as("nvidia/Qwen3-32B-FP8") is None
    assert bundled_as("Qwen/Qwen3-32B-FP8") == bundled_as("/models/Qwen3-32B-FP8") == "qwen3-32b-fp8"


@pytest.mark.parametrize(
    "name", ["/mnt/models/Llama-3.3-70B-Instruct-FP4", "Qwen3.5-35B-A3B-FP8", "./Qwen3-8B-AWQ"]
)
def test_a_folder_is_of_the_only_publisher_or_of_the_models_own(name: str) -> None:
    assert load_model(name).weights.dense < 2


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("Llama-3.1-8B-Instruct-FP8", "nvidia/Llama-3.1-8B-Instruct-FP8, RedHatAI/Llama-3.1-8B-Instruct-FP8"),
        ("amd/Llama-3.1-8B-Instruct-FP8", "nvidia/Llama-3.1-8B-Instruct-FP8"),
        ("nvidia/GLM-5-NVFP4", "--model-config"),
        ("RedHatAI/DeepSeek-R1-quantized.w4a16", "--model-config"),
        ("nvidia/Qwen3-8BFP8", "--model-config"),
    ],
)
def test_a_format_that_is_not_known_is_refused(name: str, named: str) -> None:
    """Experts in 4 bits differ from one checkpoint to the next; a model in 8 bits is not put into 4."""
    assert not is_known(name)
    with pytest.raises(InputError) as refused:
        load_model(name)
    assert named in str(refused.value)


@pytest.mark.parametrize(("name", "bundled"), [("nvidia/Qwen3-235B-A22B-NVFP4", "qwen3-235b-a22b-nvfp4")])
def test_a_bundled_checkpoint_is_that_of_its_file(name: str, bundled: str) -> None:
    assert published_checkpoint(name) is None
    assert same_sizes(load_model(name), load_model(bundled))


@pytest.mark.parametrize(
    ("bundled", "name"),
    [("qwen3-32b-fp8", "RedHatAI/Qwen3-32B-FP8-block"), ("llama-3.1-70b-fp8", "nvidia/Llama-3.1-70B-FP8")],
)
def test_a_format_is_that_of_bundled_checkpoints_of_its_kind(bundled: str, name: str) -> None:
    assert same_sizes(load_model(name), load_model(bundled))
