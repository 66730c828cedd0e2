"""Checkpoints of gpt-oss: experts stacked, gate and up rows in turns, in MXFP4 or not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from blis_py.errors import InputError
from engine.models import Decoder, build_model, load_model_config
from engine.models.stacked_experts import dequantised_mxfp4

transformers = pytest.importorskip("transformers")

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
STACKED = ("gate_up_proj", "down_proj")


def packed(seed: int, *shape: int) -> tuple[Tensor, Tensor]:
    """Random blocks `[*shape, 16]` and scales `[*shape]`."""
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
    return blocks, torch.randint(117, 127, shape, generator=generator, dtype=torch.uint8)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A tiny gpt-oss in float32, as the library saves it."""
    config = transformers.GptOssConfig(
        vocab_size=101,
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=3,
        num_experts_per_tok=2,
        max_position_embeddings=96,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    )
    transformers.GptOssForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def load(folder: Path) -> Decoder:
    return build_model(load_model_config(folder), device="cpu", path=folder)


def test_values_are_those_of_the_published_format() -> None:
    pairs = [0x10 * (15 - low) + low for low in range(16)]
    blocks = torch.tensor([[[pairs]]])
    values = dequantised_mxfp4(blocks.to(torch.uint8), torch.tensor([[[129]]], dtype=torch.uint8))
    expected = [4 * E2M1[code] for low in range(16) for code in (low, 15 - low)]
    assert values.shape == (1, 32, 1)
    assert values.flatten().tolist() == expected


def test_values_are_those_of_transformers() -> None:
    convert = pytest.importorskip("transformers.integrations.mxfp4").convert_moe_packed_tensors
    blocks, scales = packed(0, 3, 10, 4)
    assert torch.equal(dequantised_mxfp4(blocks, scales), convert(blocks, scales).reshape(3, 128, 10))


def test_packed_experts_load_as_the_same_values_unpacked(checkpoint: Path, tmp_path: Path) -> None:
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    in_mxfp4 = dict(tensors)
    for number, name in enumerate(name for name in tensors if name.endswith(STACKED)):
        experts, inputs, outputs = tensors[name].shape
        blocks, scales = packed(number, experts, outputs, inputs // 32)
        tensors[name] = dequantised_mxfp4(blocks, scales).float()
        del in_mxfp4[name]
        in_mxfp4 |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
    plain = load(checkpoint).state_dict()
    save_file(in_mxfp4, file)
    unpacked = load(checkpoint).state_dict()
    assert len(in_mxfp4) == len(tensors) + 4
    assert all(torch.equal(unpacked[name], tensor) for name, tensor in plain.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_local_experts": 5}, r"experts\.down_proj: 3 experts where the config says 5; use the config"),
        ({"num_local_experts": 2}, r"experts\.down_proj: 3 experts where the config says 2"),
        ({"intermediate_size": 16}, r"experts\.down_proj: shape \[64, 32\] of each where .* \[64, 16\]"),
    ],
)
def test_experts_of_another_number_or_size_are_refused(
    checkpoint: Path, change: dict[str, int], message: str
) -> None:
    file = checkpoint / "config.json"
    config = transformers.GptOssConfig.from_json_file(file)
    config.update(change)
    config.architectures = ["GptOssForCausalLM"]
    file.write_text(config.to_json_string())
    with pytest.raises(InputError, match=message):
        load(checkpoint)


def test_stacked_experts_of_other_architectures_are_not_taken_for_these(checkpoint: Path) -> None:
    """The same names mean other layouts there."""
    from engine.models.checkpoint import _members

    names = load_model_config("qwen3-30b-a3b"), load_model_config(checkpoint)
    stacked = "model.layers.0.mlp.experts.gate_up_proj"
    assert not _members(names[0], stacked)
    assert len(_members(names[1], stacked)) == 6
