"""Weights in float8: products, checkpoints of every kind, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from paged_run import PagedRun
from test_checkpoints import dummy, load, save, tiny
from torch import Tensor

from blis_py.errors import InputError
from engine.kernels.fp8 import FP8
from engine.layers.fp8 import dequantised, fp8_product, quantised
from engine.layers.linear import product
from engine.models import Decoder, load_model_config
from engine.models.places import places, scales
from engine.models.weights import weight_bytes

HF = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
      "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm"]}  # fmt: skip
_FLOAT = {"type": "float", "num_bits": 8, "symmetric": True}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head", "re:.*mlp.gate$"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": _FLOAT, "input_activations": _FLOAT}},
}
PER_TENSOR = {"quant_method": "fp8", "activation_scheme": "static"}


def test_a_product_is_that_of_what_is_stored() -> None:
    torch.manual_seed(0)
    x, matrix, bias = torch.randn(5, 64), torch.randn(32, 64), torch.randn(32)
    stored, scale = quantised(matrix)
    out = fp8_product(x, stored, scale.squeeze(1), bias)
    rows, row_scale = quantised(x)
    expected = dequantised(rows, row_scale) @ dequantised(stored, scale).t() + bias
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)
    assert (out - (x @ matrix.t() + bias)).norm() < 0.06 * (x @ matrix.t()).norm()


def test_tensor_cores_get_the_same_product() -> None:
    from engine.layers.fp8 import _on_tensor_cores, _reference

    torch.manual_seed(1)
    (rows, row_scale), (matrix, scale) = quantised(torch.randn(7, 64)), quantised(torch.randn(48, 64))
    arguments = rows, row_scale, matrix, scale.squeeze(1), torch.bfloat16
    torch.testing.assert_close(_on_tensor_cores(*arguments), _reference(*arguments), rtol=0.02, atol=0.02)


def test_rows_keep_their_largest_and_their_zeros() -> None:
    stored, scale = quantised(torch.tensor([[1e-20, 0.0], [3.0, -1.5], [7e4, 0.0]]))
    again = dequantised(stored, scale)
    assert again[1].tolist() == [3.0, -1.5]
    assert again[2].tolist() == pytest.approx([7e4, 0.0])
    assert again[0, 1] == 0


@pytest.mark.parametrize("rows", [64, 96, 80])
def test_scales_of_blocks_reach_as_far_as_their_block(rows: int) -> None:
    stored, scale = torch.ones(rows, 64).to(FP8), torch.arange(1.0, 1 + 2 * -(-rows // 32)).view(-1, 2)
    values = dequantised(stored, scale)
    assert values[31, 31] == 1
    assert values[31, 32] == 2
    assert values[-1, -1] == scale[-1, -1]


def stored_as(tensors: dict[str, Tensor], quantised_names: set[str], kind: str) -> dict[str, Tensor]:
    """Tensors as a checkpoint of a kind has them."""
    found = {}
    for name, values in tensors.items():
        if name not in quantised_names:
            found[name] = values
            continue
        if kind == "tensor":
            scale = values.abs().max() / 448
            found[f"{name}_scale"], found[name.replace("weight", "input_scale")] = scale, torch.tensor(0.5)
            spread: Tensor = scale
        elif kind == "row":
            spread = found[f"{name}_scale"] = values.abs().amax(1, keepdim=True) / 448
        else:
            blocks = values.unfold(0, 32, 32).unfold(1, 32, 32).abs().amax((2, 3)) / 448
            found[f"{name}_scale_inv"] = blocks
            spread = blocks.repeat_interleave(32, 0).repeat_interleave(32, 1)
        found[name] = (values / spread).to(FP8)
    return found


def values_of(decoder: Decoder) -> dict[str, Tensor]:
    """What a decoder computes with, in float32."""
    scale_of = scales(decoder)
    return {
        name: dequantised(view, scale_of[name]) if name in scale_of else view
        for name, view in places(decoder).items()
    }


def written(folder: Path, kind: str, section: dict[str, Any], base: str = "qwen3-0.6b") -> dict[str, Tensor]:
    """A checkpoint in float8; returns the values it stands for."""
    sizes = {"intermediate_size": 96}
    plain = dummy(tiny(folder, base, **sizes))
    names = {name for name in places(plain) if name.endswith("proj.weight")}
    tensors = stored_as(dict(places(plain)), names, kind)
    save(folder, tensors, shards=3)
    tiny(folder, base, quantization_config=section, **sizes)
    scale_of = {n: tensors.get(f"{n}_scale", tensors.get(f"{n}_scale_inv")) for n in names}
    return {
        name: view if (scale := scale_of.get(name)) is None else dequantised(tensors[name], scale)
        for name, view in ((n, tensors[n]) for n in places(plain))
    }


KINDS = pytest.mark.parametrize(
    ("kind", "section"),
    [("tensor", PER_TENSOR), ("row", COMPRESSED), ("block", HF)],
    ids=["tensor", "row", "block"],
)


@KINDS
def test_a_checkpoint_is_kept_as_it_is_but_blocks_are_rounded_to_rows(
    kind: str, section: dict[str, Any], tmp_path: Path
) -> None:
    meant = written(tmp_path / "model", kind, section)
    decoder = load(tmp_path / "model")
    for name, values in values_of(decoder).items():
        if kind == "block" and name in scales(decoder):
            assert (values - meant[name]).norm() < 0.04 * meant[name].norm()
        else:
            torch.testing.assert_close(values, meant[name], rtol=1e-6, atol=0)
    assert decoder.layers[0].attention.qkv.weight.dtype == FP8  # type: ignore[union-attr]


@KINDS
def test_logits_are_those_of_the_values_meant(kind: str, section: dict[str, Any], tmp_path: Path) -> None:
    """Beside the same decoder with dequantised weights; activations are rounded, too."""
    meant = written(tmp_path / "model", kind, section)
    decoder = load(tmp_path / "model")
    plain = dummy(tiny(tmp_path / "plain", intermediate_size=96))
    for name, view in places(plain).items():
        view.copy_(meant[name])
    prompt = list(range(3, 40))
    logits, expected = (PagedRun(model, 16).step([(0, prompt)])[0] for model in (decoder, plain))
    assert torch.cosine_similarity(logits.flatten(), expected.flatten(), dim=0) > 0.99


@KINDS
def test_logits_are_those_of_transformers_whose_activations_are_rounded(
    kind: str, section: dict[str, Any], tmp_path: Path
) -> None:
    """transformers computes in float32 with what the decoder's weights stand for, and rounds what goes into a
    quantised product; without the rounding its logits are other ones."""
    transformers = pytest.importorskip("transformers")
    written(tmp_path / "model", kind, section)
    decoder = load(tmp_path / "model")
    config = transformers.AutoConfig.from_pretrained(tiny(tmp_path / "plain", intermediate_size=96))
    theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    missing, unexpected = theirs.load_state_dict(values_of(decoder), strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}  # tied
    prompt = list(range(3, 40))
    ours = PagedRun(decoder, 16).step([(0, prompt)])[0]

    def their_logits() -> Tensor:
        with torch.inference_mode():
            logits: Tensor = theirs(torch.tensor([prompt])).logits[0]
        return logits

    unlike = (their_logits() - ours).norm()
    for name, module in theirs.named_modules():
        if name.endswith("proj"):
            module.register_forward_pre_hook(lambda _, inputs: rounded(inputs[0]))
    assert (their_logits() - ours).norm() < 0.1 * unlike
    # An activation at the edge of two FP8 values is rounded to the other one on some processors.
    away = (their_logits() - ours).abs() / (1 + ours.abs())
    assert (away < 1e-3).float().mean() > 0.95
    assert away.max() < 0.01


def rounded(x: Tensor) -> Tensor:
    """Activations as a product in float8 sees them."""
    rows, scale = quantised(x.flatten(0, -2))
    return dequantised(rows, scale).view_as(x)


def test_dummy_weights_have_the_scale_of_others(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", quantization_config=PER_TENSOR)
    decoder, plain = dummy(folder), dummy(tiny(tmp_path / "plain"))
    for (name, values), other in zip(values_of(decoder).items(), places(plain).values(), strict=True):
        if values.numel() > 1000:
            assert values.std() == pytest.approx(float(other.std()), rel=0.1), name
    config = load_model_config(folder)
    assert weight_bytes(config, torch.bfloat16) < weight_bytes(
        load_model_config(tmp_path / "plain"), torch.bfloat16
    )


def test_experts_are_taken_out_of_float8(tmp_path: Path) -> None:
    meant = written(tmp_path / "model", "row", COMPRESSED, "qwen3-30b-a3b")
    decoder = load(tmp_path / "model")
    for name, values in values_of(decoder).items():
        torch.testing.assert_close(values, meant[name], rtol=1e-6, atol=0)


def test_a_product_without_scale_is_the_plain_one() -> None:
    x, matrix = torch.randn(2, 8), torch.randn(4, 8)
    assert torch.equal(product(x, matrix), torch.nn.functional.linear(x, matrix))


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ({"quant_method": "awq"}, "quantised weights of this kind are not supported .*awq"),
        ({**COMPRESSED, "config_groups": {"g": {"weights": {"type": "int", "num_bits": 8}}}}, "of this kind"),
        (
            {**HF, "modules_to_not_convert": ["model.layers.1.self_attn.q_proj"]},
            "not quantised is not supported",
        ),
    ],
)
def test_other_quantisation_is_refused(section: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=complaint):
        load_model_config(tiny(tmp_path / "model", quantization_config=section))


def test_sizes_that_tensor_cores_do_not_take_are_refused(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", quantization_config=PER_TENSOR, intermediate_size=100)
    with pytest.raises(InputError, match="intermediate_size: float8 products need multiples of 16"):
        load_model_config(folder)


def test_a_matrix_that_is_not_in_float8_is_named(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model")
    save(folder, dict(places(dummy(folder))))
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": PER_TENSOR}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"proj\.weight: not in float8"):
        load(folder)
