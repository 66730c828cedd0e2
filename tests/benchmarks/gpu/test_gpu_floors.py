"""What a forward cannot avoid to read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from floors import active_experts, forward_bytes
from torch.utils._python_dispatch import TorchDispatchMode

from engine.build import build_engine
from engine.config import EngineConfig
from engine.models.config import ModelConfig, find_config, load_model_config
from engine.models.weights import build_model, weight_bytes
from engine.sampling_params import SamplingParams
from engine.tiny import checkpoint

BF16 = torch.bfloat16


def small(tmp_path: Path, bundled: str, **changes: Any) -> ModelConfig:
    sizes = {"hidden_size": 64, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 300}
    config = json.loads(find_config(bundled).read_text()) | sizes | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    return load_model_config(tmp_path)


def test_a_decode_of_qwen3_8b_does_not_read_its_embedding_table() -> None:
    """7.6 % of the weights; a row of it is read for each token."""
    config = load_model_config("qwen3-8b")
    left_out = weight_bytes(config, BF16) - forward_bytes(config, BF16, 1, 0)
    assert left_out == (151_936 - 1) * 4096 * 2
    assert left_out / weight_bytes(config, BF16) == pytest.approx(0.076, abs=5e-4)


def test_tied_embeddings_are_read_as_the_head(tmp_path: Path) -> None:
    config = small(tmp_path, "qwen3-0.6b", tie_word_embeddings=True)
    assert forward_bytes(config, BF16, 3, 0) == weight_bytes(config, BF16) + 3 * 64 * 2


def test_the_kv_cache_is_read_token_by_token(tmp_path: Path) -> None:
    config = small(tmp_path, "qwen3-0.6b")
    more = forward_bytes(config, BF16, 1, 1000) - forward_bytes(config, BF16, 1, 0)
    assert more == 1000 * 2 * 2 * 2 * 16 * 2  # keys and values, layers, heads, dimensions, bytes


def test_a_layer_with_a_window_reads_no_more_than_the_window_of_each_token() -> None:
    config = load_model_config("gpt-oss-20b")  # every other layer sees 128 tokens
    near, far = ([forward_bytes(config, BF16, 4, kv) for kv in (at, at + 400)] for at in (0, 4 * 128))
    assert far[1] - far[0] == (near[1] - near[0]) / 2


def test_one_token_reads_the_experts_it_is_routed_to_and_many_read_all(tmp_path: Path) -> None:
    sparse = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = small(tmp_path, "qwen3-30b-a3b", **sparse)
    model = build_model(config, device="cpu", dtype=BF16, load_format="dummy")
    routed = sum(layer.mlp.experts.w13.nbytes + layer.mlp.experts.w2.nbytes for layer in model.layers)  # type: ignore[union-attr]
    table = 0 if config.tied_embeddings else 300 * 64 * 2
    others = weight_bytes(config, BF16) - routed - table
    assert forward_bytes(config, BF16, 1, 0) == pytest.approx(others + 64 * 2 + routed * 2 / 8)
    assert forward_bytes(config, BF16, 1000, 0) == pytest.approx(others + 1000 * 64 * 2 + routed)


def test_experts_in_use_are_those_of_random_choices() -> None:
    config = load_model_config("qwen3-30b-a3b")
    generator = torch.Generator().manual_seed(0)
    for tokens in (1, 8, 64):
        scores = torch.rand(200, tokens, config.experts, generator=generator)
        chosen = scores.topk(8, dim=-1).indices.flatten(1)
        counted = sum(len(row.unique()) for row in chosen) / len(chosen)
        assert active_experts(config, tokens) == pytest.approx(counted, rel=0.02)


class WeightReads(TorchDispatchMode):
    """Bytes of a model's weights that operations read, every time they do."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        self.read = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        aliases = [returned.alias_info for returned in func._schema.returns if returned.alias_info]
        if all(alias.is_write for alias in aliases):  # no view
            rows = func in (torch.ops.aten.embedding.default, torch.ops.aten.index_select.default)
            for tensor in (each for each in args if isinstance(each, torch.Tensor)):
                if tensor.untyped_storage().data_ptr() in self._weights:
                    self.read += out.nbytes if rows else tensor.nbytes
        return out


@pytest.mark.parametrize("batch", [1, 5])
def test_a_decode_step_of_the_engine_reads_as_many_bytes_of_weights_as_its_floor(batch: int) -> None:
    settings = EngineConfig(model=str(checkpoint("ar")), device="cpu", num_kv_blocks=40)
    engine = build_engine(settings)
    for _ in range(batch):
        engine.add_request([1, 2, 3], SamplingParams(temperature=0, ignore_eos=True, max_tokens=9))
    engine.step()
    model = engine.executor.forward.model
    with WeightReads(model) as reads:
        engine.step()
    assert engine.recorder.log().steps["decode_seqs"] == [0, batch]
    dtype = next(model.parameters()).dtype
    assert reads.read == forward_bytes(load_model_config(str(checkpoint("ar"))), dtype, batch, 0)
