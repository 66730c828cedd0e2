"""Ling 2.0 and LLaDA2 against an independent float64 implementation of the architecture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ling_reference
import numpy as np
import pytest
import torch
from ling_reference import Tensors
from paged_run import PagedRun
from safetensors.numpy import save_file

from engine.models import build_model, load_model_config

SIZES: dict[str, Any] = {
    "first_k_dense_replace": 1,
    "head_dim": 12,
    "hidden_size": 40,
    "intermediate_size": 56,
    "max_position_embeddings": 64,
    "moe_intermediate_size": 20,
    "n_group": 4,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "num_shared_experts": 2,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 600.0,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 2,
    "vocab_size": 61,
}
IDS = np.random.default_rng(5).integers(61, size=29).tolist()


def checkpoint(folder: Path, architecture: str, **changes: Any) -> tuple[dict[str, Any], Tensors]:
    """Writes random weights under the names of the published checkpoints; returns config and tensors."""
    config = {**SIZES, "architectures": [architecture], **changes}
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(11)
    tensors = {name: rng.normal(size=shape) for name, shape in shapes(config).items()}
    for name, values in tensors.items():
        if name.endswith("norm.weight"):
            values *= 0.3
            values += 1
        elif values.ndim == 2:
            values /= np.sqrt(values.shape[1])
        else:
            values *= 0.2
    tensors = {name: values.astype(np.float32) for name, values in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    return config, {name: values.astype(np.float64) for name, values in tensors.items()}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, dim = config["hidden_size"], config["head_dim"]
    q_rows, kv_rows = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim

    def gated(prefix: str, width: int) -> dict[str, tuple[int, ...]]:
        return {
            f"{prefix}.gate_proj.weight": (width, hidden),
            f"{prefix}.up_proj.weight": (width, hidden),
            f"{prefix}.down_proj.weight": (hidden, width),
        }

    found: dict[str, tuple[int, ...]] = {
        "model.word_embeddings.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config["vocab_size"], hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        found |= {
            f"{prefix}.input_layernorm.weight": (hidden,),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
            f"{prefix}.attention.query_key_value.weight": (q_rows + 2 * kv_rows, hidden),
            f"{prefix}.attention.query_layernorm.weight": (dim,),
            f"{prefix}.attention.key_layernorm.weight": (dim,),
            f"{prefix}.attention.dense.weight": (hidden, q_rows),
        }
        if layer < config["first_k_dense_replace"]:
            found |= gated(f"{prefix}.mlp", config["intermediate_size"])
            continue
        width = config["moe_intermediate_size"]
        found |= {
            f"{prefix}.mlp.gate.weight": (config["num_experts"], hidden),
            f"{prefix}.mlp.gate.expert_bias": (config["num_experts"],),
        }
        found |= gated(f"{prefix}.mlp.shared_experts", width * config["num_shared_experts"])
        for expert in range(config["num_experts"]):
            found |= gated(f"{prefix}.mlp.experts.{expert}", width)
    return found


@pytest.mark.parametrize("norm_topk_prob", [True, False])
def test_ling_equals_the_reference_in_prefill_chunks_and_decode(tmp_path: Path, norm_topk_prob: bool) -> None:
    config, tensors = checkpoint(tmp_path, "BailingMoeV2ForCausalLM", norm_topk_prob=norm_topk_prob)
    decoder = build_model(load_model_config(tmp_path), device="cpu", path=tmp_path)
    assert decoder.config.mask_block == 1
    expected = torch.tensor(ling_reference.logits(config, tensors, IDS, mask_block=1), dtype=torch.float32)
    whole = PagedRun(decoder, page_size=16).step([(0, IDS)])[0]
    run, pieces = PagedRun(decoder, page_size=5), [IDS[:9], IDS[9:20], *([token] for token in IDS[20:])]
    torch.testing.assert_close(whole, expected, atol=1e-4, rtol=1e-4)
    stepped = torch.cat([run.step([(0, piece)])[0] for piece in pieces])
    torch.testing.assert_close(stepped, expected, atol=1e-4, rtol=1e-4)


def test_llada2_equals_the_reference_with_blocks_that_see_themselves_whole(tmp_path: Path) -> None:
    block = {"block_diffusion": {"block_size": 8}}
    config, tensors = checkpoint(tmp_path, "LLaDA2MoeModelLM", **block)
    decoder = build_model(load_model_config(tmp_path), device="cpu", path=tmp_path)
    assert decoder.config.mask_block == 8
    ids = IDS[:24]
    expected = torch.tensor(ling_reference.logits(config, tensors, ids, mask_block=8), dtype=torch.float32)
    run = PagedRun(decoder, page_size=8, mask_block=8)
    stepped = torch.cat([run.step([(0, piece)])[0] for piece in (ids[:16], ids[16:])])
    torch.testing.assert_close(stepped, expected, atol=1e-4, rtol=1e-4)


def test_the_router_bias_and_the_groups_change_the_outcome(tmp_path: Path) -> None:
    """Otherwise agreement with the reference would say nothing about them."""
    config, tensors = checkpoint(tmp_path, "BailingMoeV2ForCausalLM")
    x = np.random.default_rng(1).normal(size=(50, config["hidden_size"]))
    part = {key.removeprefix("model.layers.1."): value for key, value in tensors.items()}
    unbiased = {**part, "mlp.gate.expert_bias": np.zeros(config["num_experts"])}
    ungrouped = {**config, "topk_group": config["n_group"]}

    def differing(other_config: dict[str, Any], other_part: Tensors) -> int:
        def chosen(config: dict[str, Any], part: Tensors, row: ling_reference.Array) -> set[int]:
            return set(ling_reference.route(config, part, row))

        return sum(chosen(config, part, row) != chosen(other_config, other_part, row) for row in x)

    assert differing(config, unbiased) > 5
    assert differing(ungrouped, part) > 5


def test_llada2_is_block_diffusion_of_32_tokens_unless_its_config_states_otherwise() -> None:
    assert load_model_config("llada2.0-mini").mask_block == 32
