"""All operators of a step together do the arithmetic of the model's shape, and read its weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from blis_py.hardware.capacity import model_weight_bytes
from blis_py.hardware.gpu import load_gpu
from blis_py.hardware.layout import Layout
from blis_py.latency import operator_work
from blis_py.latency.operator_list import OperatorList
from blis_py.models.model_shape import load_model

FAST = 1e40
FREE = replace(
    load_gpu("b200"),
    fp16_flops=FAST, fp8_flops=FAST, fp4_flops=FAST, hbm_bytes_per_s=FAST, link_bytes_per_s=FAST,
)  # fmt: skip
COUNTS_FLOPS = replace(FREE, fp16_flops=1e9, fp8_flops=1e9, fp4_flops=1e9)
COUNTS_BYTES = replace(FREE, hbm_bytes_per_s=1e9)
"""A nanosecond for every operation, and for every byte; nothing was measured."""
LAYOUTS = (Layout(1), Layout(4), Layout(8, 8, 8))
TOKENS = np.array([64.0])


@pytest.fixture(autouse=True)
def _without_launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(operator_work, "LAUNCH_NS", 0.0)
    return


MODELS = ["llama-3.1-70b-fp8", "qwen3-30b-a3b", "qwen3.5-397b-a17b-nvfp4", "gpt-oss-120b", "deepseek-r1"]
every_model = pytest.mark.parametrize("name", MODELS)
every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=str)


@every_model
@every_layout
def test_a_token_takes_two_operations_for_every_weight(name: str, layout: Layout) -> None:
    """Over the ranks that share it; heads of keys and values that are replicated add a hundredth at most."""
    shape, tp = load_model(name), layout.attention_tp
    operators, doubled = OperatorList(shape, COUNTS_FLOPS, layout, []), 2 * float(TOKENS[0])
    if shape.latent is None:
        linear = (shape.layers - shape.cached_layers) * shape.linear_parameters
        attention = shape.cached_layers * shape.attention_parameters + linear
        assert operators.of_attention(TOKENS)[0] == pytest.approx(doubled * attention / tp, rel=0.01)
    dense = (shape.layers - shape.moe_layers) * shape.dense_ffn_parameters / layout.gpus
    chosen = shape.experts_per_token * shape.expert_parameters / layout.gpus
    everywhere = (shape.router_parameters + shape.shared_parameters / tp) / layout.attention_dp
    sparse = shape.moe_layers * (chosen + everywhere)
    assert operators.of_computed(TOKENS)[0] == pytest.approx(doubled * (dense + sparse))
    assert operators.of_rows(TOKENS)[0] == pytest.approx(doubled * shape.vocab * shape.hidden / tp)


@every_layout
def test_a_step_of_a_dense_model_reads_its_weights(layout: Layout) -> None:
    """For one token, next to which activations are small; embeddings are looked up and not read."""
    shape, one = load_model("llama-3.1-70b-fp8"), np.array([1.0])
    operators = OperatorList(shape, COUNTS_BYTES, layout, [])
    embeddings = shape.embedding_parameters * 2
    attention = shape.layers * shape.attention_parameters * shape.weights.attention
    feed_forward = shape.layers * shape.dense_ffn_parameters * shape.weights.dense
    parts = operators.of_attention(one), operators.of_computed(one), operators.of_rows(one)
    tp = layout.attention_tp
    wanted = attention / tp, feed_forward / layout.gpus, embeddings / tp
    assert [float(part[0]) for part in parts] == pytest.approx(list(wanted), rel=0.01)
    assert attention + feed_forward + 2 * embeddings == pytest.approx(model_weight_bytes(shape), rel=1e-3)


@pytest.mark.parametrize("name", ["llama-3.1-70b-fp8", "qwen3-30b-a3b", "gpt-oss-120b"])
@every_layout
def test_attention_takes_four_operations_for_every_visible_pair(name: str, layout: Layout) -> None:
    """Of queries and keys, of every head and dimension; a windowed layer sees no further than its window."""
    shape = load_model(name)
    operators = OperatorList(shape, COUNTS_FLOPS, layout, [])
    per_pair = 4 * shape.heads / layout.attention_tp * shape.head_dim
    full, windowed, window = (
        shape.cached_layers - shape.windowed_layers,
        shape.windowed_layers,
        shape.sliding_window,
    )
    for past in (0, 40, 1000):
        pairs = sum(past + n for n in range(1, 65))
        visible = full * pairs + windowed * min(pairs, 64 * window)
        found = operators.of_chunk(TOKENS, np.array([float(past)]))
        assert found[0] == pytest.approx(per_pair * visible)
        seen = full * past + windowed * min(past, window)
        assert operators.of_decodes(TOKENS, np.array([float(past)]))[0] == pytest.approx(64 * per_pair * seen)
        several = operators.of_chunk(TOKENS, np.array([float(past)]), prompts=3.0)
        assert several[0] == pytest.approx(3 * per_pair * visible)
    assert operators.of_chunk(np.array([0.0]), np.array([9.0]))[0] == 0
    assert operators.of_decodes(np.array([0.0]), np.array([9.0]))[0] == 0


@pytest.mark.parametrize("name", [*MODELS, "minimax-m2.5"])
def test_ranks_that_share_a_layer_exchange_its_outputs(name: str) -> None:
    """Twice in every layer: a ring moves every byte of 16 bits twice, but for a rank's own part."""
    shape = load_model(name)
    linked = replace(FREE, link_bytes_per_s=1e9)
    alone = OperatorList(shape, linked, Layout(1), [])
    assert max(alone.of_attention(TOKENS)[0], alone.of_feed_forward(TOKENS)[0]) < 1e-9
    for ranks in (2, 4):
        of_all = OperatorList(shape, linked, Layout(ranks), [])
        twice = 2 * (ranks - 1) / ranks
        ring = shape.layers * 64 * shape.hidden * 2 * twice
        norms = 2 * shape.layers * 64 * 2 * 2 * twice if shape.norm_over_heads else 0
        assert of_all.of_attention(TOKENS)[0] == pytest.approx(ring + norms)
        assert of_all.of_feed_forward(TOKENS)[0] == pytest.approx(ring)


def test_a_router_in_fp32_converts_its_tokens_and_takes_its_arithmetic_beside_the_tensor_cores() -> None:
    """Of MiniMax-M2, in every engine: 67 of an H100's 989 TFLOP/s."""
    shape, h100 = load_model("minimax-m2.5"), load_gpu("h100")
    fp32, plain = (
        OperatorList(replace(shape, router_fp32=router_fp32), h100, Layout(4), [])
        for router_fp32 in (shape.router_fp32, False)
    )
    few, many = np.array([4.0]), np.array([16384.0])
    assert fp32.of_computed(few)[0] > plain.of_computed(few)[0]
    operations = 2 * many[0] * shape.experts * shape.hidden
    longer = fp32.of_computed(many)[0] - plain.of_computed(many)[0]
    assert longer / shape.layers > 0.5 * operations / 67e3


@pytest.mark.parametrize("width", [None, 1.0, 2.0])
def test_projections_are_read_in_their_own_format_unless_only_their_output_is_quantised(
    width: float | None,
) -> None:
    """An output of the same or a wider format leaves them as they are; a narrower one, in 16 bits."""
    shape = load_model("llama-3.1-70b-fp8")
    weights = replace(shape.weights, attention=1.0, output=1.0)
    plain = OperatorList(replace(shape, weights=weights), COUNTS_BYTES, Layout(1), [])
    other = OperatorList(replace(shape, weights=replace(weights, output=width)), COUNTS_BYTES, Layout(1), [])
    assert other._input_form == plain._input_form == "fp8"
    narrow = replace(weights, attention=2.0)
    assert OperatorList(replace(shape, weights=narrow), COUNTS_BYTES, Layout(1), [])._input_form == "bfloat16"
