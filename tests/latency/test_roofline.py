"""The datasheet model: its terms by hand, and the physics they have to obey."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from latency_cases import decode, prefill

from blis_py.core.features import StepFeatures
from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.latency import build, work
from blis_py.latency.base import LatencyModel
from blis_py.latency.work import distinct_experts
from blis_py.models.model_shape import ModelShape, load_model
from blis_py.models.weights import Weights

H100 = load_gpu("H100")
BARE = replace(
    H100,
    layer_overhead_ns=0.0,
    step_overhead_ns=0.0,
    host_step_ns=0.0,
    host_seq_ns=0.0,
    all_reduce_overhead_ns=0.0,
)


def roofline(shape: ModelShape, gpu: GpuSpec = BARE, tp: int = 1) -> LatencyModel:
    return build("roofline", shape=shape, gpu=gpu, tp=tp)


def test_one_decode_step_is_the_sum_of_its_memory_traffic() -> None:
    # llama-3.1-8b: 32 layers, d 4096, 32 and 8 heads of 128, I 14336, V 128256; all groups memory bound
    context = 1000
    d, width, heads, vocab = 4096, 14336, 40 * 128, 128_256
    projections = 2 * 2 * d * heads + 2 * (2 * d + 2 * heads)
    feed_forward = 2 * 3 * d * width + 2 * (2 * d + 3 * width)
    elementwise = 2 * (8 * d + 3 * width)
    attention = 4096 * (context + 2)
    head = 2 * vocab * d + 2 * (d + vocab) + 6 * vocab
    moved = 32 * (projections + feed_forward + elementwise + attention) + head
    expected = moved / (3.35e3 * H100.hbm_efficiency)
    assert roofline(load_model("llama-3.1-8b")).step_ns(decode(1, context)) == pytest.approx(expected, abs=1)


def test_a_large_prefill_is_the_sum_of_its_arithmetic_and_elementwise_traffic() -> None:
    tokens = 4096
    d, width, heads, vocab = 4096, 14336, 40 * 128, 128_256
    flops = 32 * 2 * tokens * (2 * d * heads + 3 * d * width)
    pairs = tokens * (tokens + 1) // 2
    expected = flops / (989.5e3 * H100.gemm_efficiency)
    expected += 32 * 4 * 32 * 128 * pairs / (989.5e3 * H100.attention_efficiency)
    traffic = 32 * tokens * 2 * (8 * d + 3 * width) + (2 * vocab * d + 2 * (d + vocab) + 6 * vocab)
    expected += traffic / (3.35e3 * H100.hbm_efficiency)
    assert roofline(load_model("llama-3.1-8b")).step_ns(prefill(tokens)) == pytest.approx(expected, abs=1)


def test_overheads_and_host_time_are_added_as_stated() -> None:
    shape = load_model("llama-3.1-8b")
    step = decode(8, 8000)
    with_all = roofline(shape, H100).step(step)
    bare = roofline(shape).step(step)
    added = 32 * H100.layer_overhead_ns + H100.step_overhead_ns
    assert with_all.gpu_ns - bare.gpu_ns == pytest.approx(added, abs=1)
    assert with_all.host_ns == H100.host_step_ns + 8 * H100.host_seq_ns
    assert bare.host_ns == 0


def test_an_all_reduce_moves_the_ring_volume_twice_a_layer() -> None:
    shape, tokens = load_model("llama-3.1-8b"), 100
    fast = replace(BARE, link_bytes_per_s=1e30)
    volume = 32 * 2 * tokens * 4096 * 2 * 2 * 3 / 4
    expected = volume / (450 * H100.link_efficiency)
    step = decode(tokens, tokens)
    found = roofline(shape, BARE, 4).step_ns(step) - roofline(shape, fast, 4).step_ns(step)
    assert found == pytest.approx(expected, abs=2)


def test_chunks_of_a_prompt_cost_about_what_the_whole_prompt_costs() -> None:
    model = roofline(load_model("llama-3.1-8b"))
    whole = replace(prefill(8192), emitted_rows=0)
    chunks = [replace(prefill(2048, cached), emitted_rows=0) for cached in range(0, 8192, 2048)]
    assert sum(chunk.prefill_pairs for chunk in chunks) == whole.prefill_pairs
    assert sum(map(model.step_ns, chunks)) == pytest.approx(model.step_ns(whole), rel=0.01)


def test_cached_tokens_make_a_prefill_cheaper() -> None:
    model = roofline(load_model("llama-3.1-8b"))
    assert model.step_ns(prefill(512, 3584)) < 0.2 * model.step_ns(prefill(4096))


def test_the_lm_head_is_read_only_when_a_token_is_emitted() -> None:
    model = roofline(load_model("llama-3.1-8b"))
    silent = replace(prefill(1), emitted_rows=0)
    head = 128_256 * 4096 * 2 / (3.35e3 * H100.hbm_efficiency)
    assert model.step_ns(prefill(1)) - model.step_ns(silent) == pytest.approx(head, rel=0.01)


def test_smaller_weights_make_decoding_faster_and_fp8_makes_prefill_faster() -> None:
    bf16 = load_model("llama-3.1-8b")
    fp8 = replace(bf16, weights=Weights.of(1.0, "fp8"))
    four = replace(bf16, weights=Weights.of(0.5))
    one, big = decode(1, 100), prefill(4096)
    times = [roofline(shape).step_ns(one) for shape in (bf16, fp8, four)]
    assert times[0] > 1.7 * times[1] > 2.2 * times[2]
    assert roofline(fp8).step_ns(big) < roofline(bf16).step_ns(big)
    assert roofline(four).step_ns(big) == pytest.approx(roofline(bf16).step_ns(big), rel=0.01)
    no_fp8 = replace(BARE, fp8_flops=0.0)
    assert roofline(fp8, no_fp8).step_ns(big) == pytest.approx(roofline(bf16).step_ns(big), rel=0.01)


def test_eight_bits_are_multiplied_in_eight_bits_only_where_the_activations_are_too() -> None:
    bf16 = load_model("llama-3.1-8b")
    int8, weight_only = (replace(bf16, weights=Weights.of(1.0, form)) for form in ("int8", "fp16"))
    big = prefill(4096)
    assert roofline(int8).step_ns(big) < 0.8 * roofline(bf16).step_ns(big)
    assert roofline(weight_only).step_ns(big) == pytest.approx(roofline(bf16).step_ns(big), rel=0.01)
    no_int8 = replace(BARE, int8_flops=0.0)
    assert roofline(int8, no_int8).step_ns(big) == pytest.approx(roofline(bf16, BARE).step_ns(big), rel=0.01)


def test_each_kind_of_weights_counts_in_its_own_format() -> None:
    sparse, one = load_model("llada2.0-mini"), decode(1, 1)  # one dense layer, 19 with shared experts
    full = roofline(sparse, BARE).step_ns(one)
    sizes = {
        "attention": 20 * sparse.attention_parameters,
        "dense": sparse.dense_ffn_parameters,
        "shared": 19 * sparse.shared_parameters,
        "experts": 19 * 8 * sparse.expert_parameters,
        "head": sparse.embedding_parameters,
    }
    for kind, parameters in sizes.items():
        halved = replace(sparse, weights=replace(Weights(), **{kind: 1.0}))
        saved_ns = parameters / (BARE.hbm_bytes_per_s * BARE.hbm_efficiency) * 1e9
        assert full - roofline(halved, BARE).step_ns(one) == pytest.approx(saved_ns, abs=2), kind


def test_an_eight_bit_kv_cache_is_read_in_half_the_time() -> None:
    shape = load_model("llama-3.1-8b")
    grown = [
        roofline(each, BARE).step_ns(decode(8, 80_000)) - roofline(each, BARE).step_ns(decode(8, 40_000))
        for each in (shape, replace(shape, kv_dtype_bytes=1))
    ]
    assert grown[0] == pytest.approx(2 * grown[1], rel=1e-3)


def test_more_ranks_are_faster_but_less_than_proportionally() -> None:
    shape = load_model("llama-3.1-70b")
    times = [roofline(shape, H100, tp).step_ns(decode(32, 32_000)) for tp in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert times[0] < 8 * times[3]


def test_a_faster_gpu_is_faster() -> None:
    shape = load_model("qwen3-8b")
    order = ("L4", "L40S", "A100-80", "H100", "H200", "B200")
    for step in (decode(32, 32_000), prefill(2048)):
        times = [roofline(shape, load_gpu(gpu)).step_ns(step) for gpu in order]
        if step.decode_seqs:
            assert times == sorted(times, reverse=True)
        assert times[0] > times[3] > times[5]


@pytest.mark.parametrize(("experts", "per_token", "tokens"), [(128, 8, 1), (128, 8, 16), (8, 2, 3)])
def test_distinct_experts_are_what_uniform_routing_gives(experts: int, per_token: int, tokens: int) -> None:
    draw = random.Random(7)
    rounds = 2000
    seen = sum(
        len({expert for _ in range(tokens) for expert in draw.sample(range(experts), per_token)})
        for _ in range(rounds)
    )
    assert distinct_experts(experts, per_token, tokens) == pytest.approx(seen / rounds, rel=0.02)


def test_a_sparse_model_reads_only_the_experts_it_uses() -> None:
    shape = load_model("qwen3-30b-a3b")
    model = roofline(shape)
    one = model.step_ns(decode(1, 100))
    active = shape.active_parameters - shape.embedding_parameters
    assert one == pytest.approx(2 * active / (3.35e3 * H100.hbm_efficiency), rel=0.05)
    assert model.step_ns(decode(256, 25_600)) > 5 * one


def test_an_empty_step_is_overhead_only() -> None:
    model = roofline(load_model("llama-3.1-8b"), H100)
    weights = 2 * (8_030_261_248 - 2 * 128_256 * 4096) / (3.35e3 * H100.hbm_efficiency)
    overhead = 32 * H100.layer_overhead_ns + H100.step_overhead_ns + H100.host_step_ns
    assert model.step_ns(StepFeatures()) == pytest.approx(weights + overhead, rel=0.01)


@pytest.mark.parametrize(
    ("model", "tp", "ms", "seqs", "kv_blocks"),
    [("llama-2-70b", 4, 18.53, 37, 1500), ("codellama-34b", 2, 14.87, 35, 1427)],
)
def test_decode_steps_of_two_real_servers_are_within_10_percent(
    model: str, tp: int, ms: float, seqs: int, kv_blocks: int
) -> None:
    # Medians over the exactly timed decode steps of 32 to 63 sequences in public vLLM 0.15 step traces
    # on H100 SXM (Apache-2.0), 193 and 93 of them.
    step = decode(seqs, kv_blocks * 16)
    assert roofline(load_model(model), H100, tp).step_ns(step) / 1e6 == pytest.approx(ms, rel=0.1)


def test_a_sparse_layer_moves_its_experts_router_and_activations() -> None:
    # llada2.0-mini: d 2048, 256 experts of 512, 8 of them a token, 1 shared
    shape, tokens, tp = load_model("llada2.0-mini"), 5, 2
    expert = 3 * 2048 * 512
    active = distinct_experts(256, 8, tokens) + 1
    activations = tokens * (2 * 9 * 2048 + 3 * 9 * 512 / tp)
    found = work.sparse_ffn(shape, tp, tokens)
    assert found.moved_bytes == pytest.approx(2 * (active * expert / tp + 256 * 2048 + activations))
    assert found.flops == 2 * tokens * (9 * expert / tp + 256 * 2048)
    alone = work.sparse_ffn(replace(shape, shared_intermediate=0), tp, tokens)
    less = expert / tp + tokens * (2 * 2048 + 3 * 512 / tp)
    assert found.moved_bytes - alone.moved_bytes == pytest.approx(2 * less)
    assert work.elementwise_bytes(shape, tp, tokens) == pytest.approx(
        2 * tokens * (20 * 8 * 2048 + 3 * (5120 + 19 * 9 * 512) / tp)
    )
    rows = work.head(shape, tp, 3)
    assert rows.flops == 2 * 3 * 157_184 * 2048 / tp
    assert rows.moved_bytes == 2 * (157_184 * 2048 / tp + 3 * (2048 + 157_184 / tp))
