"""Loading safetensors checkpoints, and the random weights that stand in for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from paged_run import PagedRun
from safetensors.torch import load_file, save_file
from torch import Tensor

from blis_py.errors import InputError
from blis_py.files.profiles import find_profile
from engine.models import Decoder, build_model, load_model_config
from engine.models.checkpoint import INDEX
from engine.models.places import places
from engine.models.weights import empty_decoder

TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 120,
}
TINY_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
TINY_GROUPS = {"n_group": 4, "topk_group": 2}
BASES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {},
    "qwen2.5-7b": {},
    "qwen3-0.6b": {},
    "mixtral-8x7b": {"num_local_experts": 4},
    "qwen3-30b-a3b": {**TINY_EXPERTS, "mlp_only_layers": [0]},
    "llada2.0-mini": {**TINY_EXPERTS, **TINY_GROUPS},
}


def tiny(folder: Path, base: str = "qwen3-0.6b", **changes: Any) -> Path:
    """A folder with the config of a bundled model shrunk to nothing."""
    values = json.loads(find_profile("models", base).read_text())
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**values, **TINY, **BASES[base], **changes}))
    return folder


def dummy(folder: Path, seed: int = 0) -> Decoder:
    return build_model(load_model_config(folder), device="cpu", load_format="dummy", seed=seed)


def load(folder: Path) -> Decoder:
    return build_model(load_model_config(folder), device="cpu", path=folder)


def save(folder: Path, tensors: dict[str, Tensor], shards: int = 1) -> Path:
    """Write tensors as a checkpoint, dealt out over shards in a scattered order."""
    tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    files = {name: f"part-{hash_of(name) % shards}.safetensors" for name in tensors}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": files}))
    return folder


def hash_of(name: str) -> int:
    return sum(name.encode()) + len(name)


def weights(decoder: Decoder) -> dict[str, Tensor]:
    return dict(decoder.named_parameters())


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("shards", [1, 3])
def test_what_is_saved_under_checkpoint_names_is_loaded_again(tmp_path: Path, base: str, shards: int) -> None:
    written = dummy(tiny(tmp_path, base))
    read = load(save(tmp_path, places(written), shards))
    assert weights(read).keys() == weights(written).keys()
    for name, tensor in weights(read).items():
        assert torch.equal(tensor, weights(written)[name]), name


@pytest.mark.parametrize("base", BASES)
def test_the_places_of_a_checkpoint_cover_every_weight_once(tmp_path: Path, base: str) -> None:
    decoder = empty_decoder(load_model_config(tiny(tmp_path, base)), "cpu", torch.float32)
    for weight in decoder.parameters():
        weight.zero_()
    for view in places(decoder).values():
        view.add_(1)
    for name, weight in decoder.named_parameters():
        assert (weight == 1).all(), name


def test_bfloat16_checkpoints_are_widened_on_the_cpu(tmp_path: Path) -> None:
    written = places(dummy(tiny(tmp_path)))
    narrow = {name: tensor.bfloat16() for name, tensor in written.items()}
    read = places(load(save(tmp_path, narrow)))
    for name, tensor in read.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, narrow[name].float())


def test_unused_tensors_are_passed_over(tmp_path: Path) -> None:
    """The copy of a tied embedding, rotary frequencies of old exports, multi-token prediction layers."""
    extra = {"num_nextn_predict_layers": 1, "tie_word_embeddings": True}
    tensors = places(dummy(tiny(tmp_path, **extra)))
    needless = {
        "lm_head.weight": torch.ones(120, 64),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
        "model.layers.4.eh_proj.weight": torch.ones(64, 128),
    }
    load(save(tmp_path, tensors | needless))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save(tiny(tmp_path), places(dummy(tmp_path)), shards=3)
    (tmp_path / "part-1.safetensors").unlink()
    with pytest.raises(InputError, match=r"part-1\.safetensors: model\.\S+: missing shard; download"):
        load(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = places(dummy(tiny(tmp_path)))
    del tensors["model.layers.2.mlp.up_proj.weight"]
    with pytest.raises(InputError, match=r"model\.layers\.2\.mlp\.up_proj\.weight: missing tensor"):
        load(save(tmp_path, tensors))


def test_a_tensor_the_index_promises_and_the_shard_lacks_is_named(tmp_path: Path) -> None:
    save(tiny(tmp_path), places(dummy(tmp_path)), shards=3)
    shard = tmp_path / "part-0.safetensors"
    tensors = load_file(shard)
    name = sorted(tensors)[0]
    del tensors[name]
    save_file(tensors, shard)
    with pytest.raises(InputError, match=rf"part-0\.safetensors: {name}: missing tensor"):
        load(tmp_path)


def test_an_unexpected_tensor_is_named_with_its_file(tmp_path: Path) -> None:
    tensors = places(dummy(tiny(tmp_path))) | {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}
    with pytest.raises(InputError, match=r"safetensors: \S+q_proj\.bias: unexpected tensor; use the config"):
        load(save(tmp_path, tensors))


def test_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    save(tiny(tmp_path), places(dummy(tmp_path)))
    tiny(tmp_path, intermediate_size=100)
    with pytest.raises(InputError, match=r"shape \[64, 96\] where the config says \[64, 100\]") as error:
        load(tmp_path)
    assert "model.safetensors: model.layers.0.mlp.down_proj.weight" in str(error.value)


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    tensors = places(dummy(tiny(tmp_path)))
    tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int8)
    with pytest.raises(InputError, match=r"model\.norm\.weight: unsupported dtype \(found 'I8'\)"):
        load(save(tmp_path, tensors))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    tiny(tmp_path)
    with pytest.raises(InputError, match=r"neither model\.safetensors nor .* found; .*--load-format dummy"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match="not a readable safetensors file"):
        load(tmp_path)
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(InputError, match="no weight_map can be read"):
        load(tmp_path)


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/tmp/model.safetensors", "a/../../b", "", ".", "a\0b", 7, None, ["a"]]
)
def test_an_index_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: Any) -> None:
    folder = save(tiny(tmp_path / "model"), places(dummy(tiny(tmp_path / "model"))))
    save_file({}, tmp_path / "model.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    with pytest.raises(InputError, match=r"weight_map\.lm_head\.weight: must be a file in the folder"):
        load(folder)


def test_shards_may_be_links_to_files_elsewhere(tmp_path: Path) -> None:
    saved = save(tiny(tmp_path / "blobs"), places(dummy(tiny(tmp_path / "blobs"))), shards=2)
    folder = tiny(tmp_path / "snapshot")
    for file in saved.glob("*safetensors*"):
        (folder / file.name).symlink_to(file)
    linked, plain = weights(load(folder)), weights(load(saved))
    assert all(torch.equal(linked[name], plain[name]) for name in plain)


def test_weights_of_a_bundled_model_have_to_be_given_or_dummy() -> None:
    config = load_model_config("qwen3-0.6b")
    with pytest.raises(InputError, match=r"no checkpoint folder.*--load-format dummy"):
        build_model(config, device="cpu", path="qwen3-0.6b")
    with pytest.raises(InputError, match=r"--load-format: unknown format.*safetensors, dummy"):
        build_model(config, device="cpu", load_format="gguf")


def test_the_table_of_angles_is_as_long_as_requested_and_never_longer_than_the_model(
    tmp_path: Path,
) -> None:
    config = load_model_config(tiny(tmp_path))
    whole, part = (
        build_model(config, device="cpu", load_format="dummy", max_positions=count) for count in (None, 100)
    )
    assert torch.equal(whole.rope.cos_sin[:100], part.rope.cos_sin)
    assert len(whole.rope.cos_sin) == 256
    with pytest.raises(InputError, match=r"--max-model-len: must be 1 to 256, the model's limit"):
        build_model(config, device="cpu", load_format="dummy", max_positions=257)


def test_a_model_larger_than_the_memory_is_refused(tmp_path: Path) -> None:
    huge = load_model_config(tiny(tmp_path, hidden_size=1 << 18, intermediate_size=1 << 24))
    with pytest.raises(InputError, match=r"the weights need .* GB, cpu has .* GB"):
        build_model(huge, device="cpu", load_format="dummy")


def test_dummy_weights_depend_on_seed_and_name_only(tmp_path: Path) -> None:
    first, again, other = (dummy(tiny(tmp_path), seed) for seed in (3, 3, 4))
    shallow = dummy(tiny(tmp_path / "shallow", num_hidden_layers=1, num_attention_heads=8), seed=3)
    name = "model.layers.0.self_attn.k_proj.weight"
    assert all(map(torch.equal, first.parameters(), again.parameters()))
    assert torch.equal(places(first)[name], places(shallow)[name])
    assert not torch.equal(places(first)[name], places(other)[name])
    assert not torch.equal(places(first)[name], places(first)["model.layers.1.self_attn.k_proj.weight"])


def test_weights_drawn_on_the_device_itself_are_as_deterministic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.models.dummy.CPU_GENERATOR_ELEMENTS", 0)
    first, again, other = (places(dummy(tiny(tmp_path), seed)) for seed in (3, 3, 4))
    name = "model.layers.3.self_attn.v_proj.weight"
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first[name], other[name])
    assert first[name].std() == pytest.approx(1 / 8, rel=0.1)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("layers", [2, 24])
def test_dummy_activations_and_logits_are_of_order_one_at_any_depth(
    tmp_path: Path, base: str, layers: int
) -> None:
    decoder = dummy(tiny(tmp_path, base, num_hidden_layers=layers, hidden_size=128, mlp_only_layers=[]))
    residual: list[Tensor] = []
    decoder.layers[-1].register_forward_hook(lambda _, inputs, out: residual.append(sum(out)))
    logits = PagedRun(decoder, page_size=16).step([(0, list(range(100)))])[0]
    assert 0.3 < residual[0].std() < 2
    assert 0.5 < logits.std() < 2
    assert len(set(logits.argmax(-1).tolist())) > 15


@pytest.mark.parametrize("base", BASES)
def test_a_bfloat16_decoder_gives_nearly_the_logits_of_a_float32_one(tmp_path: Path, base: str) -> None:
    config = load_model_config(tiny(tmp_path, base))
    wide, narrow = (
        PagedRun(build_model(config, device="cpu", dtype=dtype, load_format="dummy"), page_size=16).step(
            [(0, list(range(40)))]
        )[0]
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert narrow.dtype == torch.float32
    errors = (narrow - wide).pow(2).mean(-1) / wide.pow(2).mean(-1)
    assert errors.median() < 1e-3
    assert errors.median() > 0


@pytest.mark.parametrize("base", ["mixtral-8x7b", "qwen3-30b-a3b", "llada2.0-mini"])
def test_dummy_routers_use_every_expert_in_every_layer(tmp_path: Path, base: str) -> None:
    decoder = dummy(tiny(tmp_path, base, num_hidden_layers=24, hidden_size=128, mlp_only_layers=[]))
    load = decoder.track_expert_load()
    assert load is not None
    PagedRun(decoder, page_size=16).step([(0, list(range(100)))])
    assert load.sum(1).tolist() == [200] * len(decoder.config.sparse_layers)
    mean = 200 / decoder.config.experts
    assert load.min() > mean / 8
    assert load.max() < mean * 3


def test_dense_models_have_no_experts_to_count(tmp_path: Path) -> None:
    assert dummy(tiny(tmp_path)).track_expert_load() is None
