"""Prices operator by operator: surfaces, layouts, formats, and what was learned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from latency_cases import decode, prefill

from blis_py.core.features import StepFeatures
from blis_py.core.rank_features import RankedFeatures
from blis_py.errors import InputError
from blis_py.hardware.capacity import kv_capacity
from blis_py.hardware.gpu import load_gpu
from blis_py.hardware.layout import Layout
from blis_py.hardware.memory_overheads import OVERHEADS
from blis_py.latency import build
from blis_py.latency import operator_work as work
from blis_py.latency.base import unbounded
from blis_py.latency.engine_terms import EngineTerms, terms_of
from blis_py.latency.expert_load import ExpertLoad
from blis_py.latency.graph_sizes import default_sizes
from blis_py.latency.operator_list import KernelOptions, OperatorList
from blis_py.latency.operators import ENGINES, Operators, surfaces_for
from blis_py.latency.served import Served
from blis_py.latency.surfaces import Surface, load_surfaces
from blis_py.latency.trained import ServerTerms, Trained, bundled_training
from blis_py.models.model_shape import load_model
from blis_py.models.weights import Weights


def operators(
    model: str, gpu: str = "b200", layout: Layout | None = None, engine: str = "sglang"
) -> Operators:
    layout = layout or Layout(8)
    found = Served(load_model(model), load_gpu(gpu), layout, engine).model()
    assert isinstance(found, Operators)
    return found


MODELS = [
    operators("deepseek-r1"),
    operators("deepseek-v3.1-nvfp4", layout=Layout(8, 8, 8), engine="trtllm"),
    operators("qwen3.5-397b-a17b-nvfp4", layout=Layout(4, 1, 4)),
    operators("gpt-oss-120b", "h200", Layout(1), "vllm"),
    operators("llama-3.1-70b-fp8", "h100", Layout(4), "trtllm"),
]
every_model = pytest.mark.parametrize("model", MODELS, ids=[model.provenance for model in MODELS])


@every_model
def test_a_run_of_decode_steps_ends_where_single_steps_end(model: Operators) -> None:
    step, now, ends = decode(13, 13 * 700), 0, []
    for done in range(300):
        now += model.step_ns(step.after(done))
        ends.append(now)
    run = model.decode_run(step, 300)
    assert run.end_ns == now
    assert run.ends_ns().tolist() == ends


@every_model
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("steps", [1, 4, 20])
def test_steps_without_decodes_are_priced_as_single_ones(model: Operators, steps: int) -> None:
    run = model.decode_run(StepFeatures(), steps)
    assert run.end_ns == steps * model.step_ns(StepFeatures())


@every_model
@pytest.mark.filterwarnings("error")
def test_a_rank_without_decodes_has_a_finite_price(model: Operators) -> None:
    """Its attention has no points over the contexts of decodes."""
    beside = RankedFeatures([StepFeatures(prefill_tokens=16), decode(4, 100)])
    beside.prefill_seqs = 1
    assert model.step_ns(beside) > 0


@every_model
def test_more_work_takes_longer(model: Operators) -> None:
    decodes = [model.step_ns(decode(seqs, seqs * 1000)) for seqs in (1, 8, 64, 512)]
    prompts = [model.step_ns(prefill(tokens)) for tokens in (128, 1024, 8192, 32768)]
    assert decodes == sorted(decodes)
    assert prompts == sorted(prompts)
    assert model.step_ns(decode(64, 64 * 30_000)) > model.step_ns(decode(64, 64 * 1000))
    assert model.step_ns(prefill(8192, cached=100_000)) > model.step_ns(prefill(8192))


def windows_of(model: Operators) -> tuple[tuple[int, int], ...]:
    """Numbers of layers with their window."""
    return tuple((count, reads.window) for count, reads in model._list._attention)


def test_layers_with_a_window_and_those_without_are_all_layers() -> None:
    """Half of gpt-oss attends to the last 128 tokens."""
    assert windows_of(MODELS[3]) == ((18, 0), (18, 128))
    for model in (MODELS[0], MODELS[2], MODELS[4]):
        shape = model._list._shape
        assert windows_of(model) == ((shape.cached_layers, 0), (0, 0))


def test_dense_models_under_vllm_are_priced_as_before() -> None:
    for model in ("qwen3-14b", "llama-3.1-70b-fp8"):
        found = build("trained", shape=load_model(model), gpu=load_gpu("h100"), tp=4)
        assert isinstance(unbounded(found), Trained)


def test_experts_in_16_bits_under_vllm_are_priced_by_the_formula_where_it_was_learned_on_them() -> None:
    """Terms beside operators were learned on servers of FP8 and MXFP4 alone."""

    def kind(gpu: str, model: str = "mixtral-8x7b", **options: Any) -> type:
        found = build("trained", shape=load_model(model), gpu=load_gpu(gpu), tp=2, **options)
        return type(unbounded(found))

    for gpu in bundled_training().learned.tp["sparse 16 bits"]:
        for model in ("mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b-a22b"):
            assert kind(gpu, model) is Trained
        for model in ("llama-4-scout", "qwen3-30b-a3b-fp8", "gpt-oss-120b", "minimax-m2.5-nvfp4"):
            assert kind(gpu, model) is Operators
        assert kind(gpu, moe_backend="triton") is Trained
        for options in (
            {"moe_backend": "flashinfer_cutlass"},
            {"load": ExpertLoad("skewed")},
            {"layout": Layout(2, 1, 2)},
            {"kernels": "sglang"},
        ):
            assert kind(gpu, **options) is Operators
    for gpu in ("b200", "a100-80", "l40s"):
        assert kind(gpu) is Operators


def test_a_surface_has_its_values_at_the_knots_and_no_others_beyond() -> None:
    surface = Surface((np.array([0.0, 2.0]), np.array([1.0, 3.0])), np.array([[0.0, 1.0], [2.0, 3.0]]))
    assert surface.at((np.array([2.0]), np.array([1.0]))) == 2.0
    assert surface.at((np.array([1.0]), np.array([2.0]))) == 1.5
    assert surface.at((np.array([-9.0]), np.array([9.0]))) == 1.0


def test_prompts_of_a_step_are_priced_by_their_tokens_and_not_as_a_long_one_with_as_many_pairs() -> None:
    """A window, and the expansion of a latent cache, cost by the token; measured kernels take up to a step of
    each prompt alone."""
    for model, layout, engine in (
        ("gpt-oss-120b", Layout(1), "trtllm"),
        ("deepseek-r1", Layout(8), "sglang"),
    ):
        latency = operators(model, layout=layout, engine=engine)
        one, sixteen = (latency._prompts_ns(n, n * 1024, n * 1024 * 1025 / 2) for n in (1, 16))
        as_long = latency._prompts_ns(1, 4096, 16 * 1024 * 1025 / 2)
        assert 1.5 * as_long < sixteen < 16 * one


def test_ranks_with_requests_of_their_own_wait_for_the_busiest() -> None:
    """One prompt among eight ranks takes as long as one on each of them, but for the experts."""
    model = operators("deepseek-r1", layout=Layout(8, 8, 8))
    one, eight = (
        StepFeatures(prefill_seqs=n, prefill_tokens=n * 1000, prefill_pairs=n * 500_500, emitted_rows=n)
        for n in (1, 8)
    )
    assert model.step_ns(one) < model.step_ns(eight) < 3 * model.step_ns(one)


@pytest.mark.parametrize(
    "loads",
    [
        [(4, 4_000), (4, 9_000), (0, 0), (1, 100)],  # one is the slowest all along
        [(9, 1_000), (3, 9_100), (3, 9_000), (0, 0)],  # the one with more sequences overtakes
        [(2, 30), (2, 20), (2, 10), (1, 4)],  # past many points of their lines
    ],
)
def test_a_run_of_ranks_ends_where_their_single_steps_end(loads: list[tuple[int, int]]) -> None:
    model = operators("deepseek-v3.1-nvfp4", layout=Layout(4, 4, 4), engine="trtllm")
    step = RankedFeatures([decode(seqs, tokens) if seqs else StepFeatures() for seqs, tokens in loads])
    ends = np.cumsum([model.step_ns(step.after(done)) for done in range(400)])
    assert model.decode_run(step, 400).ends_ns().tolist() == ends.tolist()


def test_experts_distributed_or_split_are_priced_apart() -> None:
    split, distributed = (operators("deepseek-r1", layout=Layout(8, 1, ep)) for ep in (1, 8))
    assert split.step_ns(decode(64, 64_000)) != distributed.step_ns(decode(64, 64_000))


@pytest.mark.parametrize(
    ("model", "layout", "message"),
    [
        ("deepseek-r1", Layout(8, 3, 1), "--attention-dp: does not divide the 8 GPUs of an instance"),
        ("deepseek-r1", Layout(2, 4, 1), "--attention-dp: does not divide the 2 GPUs of an instance"),
        ("deepseek-r1", Layout(8, 1, 5), "--ep: does not divide the 8 GPUs of an instance"),
        ("qwen3-14b", Layout(8, 1, 8), "--ep: qwen3-14b has no experts to distribute"),
    ],
)
def test_a_layout_that_does_not_divide_is_refused(model: str, layout: Layout, message: str) -> None:
    with pytest.raises(InputError) as error:
        build("trained", shape=load_model(model), gpu=load_gpu("b200"), tp=8, layout=layout)
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["roofline", "trained-physics"])
def test_models_of_step_times_that_know_no_latent_attention_refuse_it(name: str) -> None:
    with pytest.raises(InputError, match="does not price latent attention"):
        build(name, shape=load_model("deepseek-r1"), gpu=load_gpu("h100"), tp=8)


def test_a_gpu_without_measured_kernels_is_priced_by_its_datasheet_and_reports_it() -> None:
    assert load_surfaces("mi300x", "sglang") is None
    model = operators("deepseek-r1", "mi300x")
    assert "sglang on h100, datasheet of MI300X" in model.provenance
    assert "kernels of the MI300X" in model.beyond()


def test_what_was_learned_on_together_has_no_note() -> None:
    assert operators("deepseek-v3.1-nvfp4", layout=Layout(8, 1, 8)).beyond() == ""
    assert "sglang with MLA MoE FP8 on H100 TP8" in operators("deepseek-r1", "h100").beyond()


def test_a_servers_own_gap_and_factor_apply() -> None:
    plain = operators("deepseek-r1")
    slower = plain.on_server(ServerTerms(scale=2.0, gap_ns=1e6))
    step = decode(8, 8000)
    assert slower.step_ns(step) == pytest.approx(2 * plain.step_ns(step) + 1e6, rel=1e-6)


def test_a_latent_cache_is_as_large_on_every_rank_and_replicas_add_theirs() -> None:
    shape, gpu, overheads = load_model("deepseek-r1"), load_gpu("h200"), OVERHEADS["sglang"]
    eight = kv_capacity(shape, gpu, 8, overheads=overheads)
    assert eight.block_bytes == 61 * 576 * 2 * 16
    shared = kv_capacity(shape, gpu, 8, overheads=overheads, layout=Layout(8, 8, 8))
    assert shared.block_bytes == eight.block_bytes
    assert shared.weight_bytes > eight.weight_bytes


def test_the_share_of_trtllm_is_one_of_what_is_left() -> None:
    shape, gpu = load_model("llama-3.1-8b"), load_gpu("h200")
    whole, half = (
        kv_capacity(shape, gpu, gpu_memory_utilization=share, overheads=OVERHEADS["trtllm"]).blocks
        for share in (1.0, 0.5)
    )
    assert abs(whole - 2 * half) <= 1


def test_windowed_layers_keep_no_more_than_their_window() -> None:
    shape, gpu = load_model("gpt-oss-120b"), load_gpu("h200")
    with_windows = kv_capacity(shape, gpu, overheads=OVERHEADS["vllm"])
    assert with_windows.block_bytes == 18 * 2 * 8 * 64 * 2 * 16
    assert kv_capacity(shape, gpu).block_bytes == 2 * with_windows.block_bytes


def test_copies_of_experts_make_other_numbers_of_groups_possible_and_take_memory() -> None:
    shape, gpu = load_model("deepseek-r1"), load_gpu("gb200")
    wide = Layout(48, 48, 48)
    with pytest.raises(InputError, match="does not divide the 256 experts of deepseek-r1"):
        wide.check(shape)
    copied = wide._replace(redundant_experts=32)
    copied.check(shape)
    assert copied.experts_per_group(shape) == 6
    weights = [kv_capacity(shape, gpu, 48, layout=each).weight_bytes for each in (wide, copied)]
    assert 1.05 < weights[1] / weights[0] < 1.125, "32 of 256 more, but attention has none"
    with pytest.raises(InputError, match="are copies of experts that are not distributed"):
        Layout(8, redundant_experts=32).check(shape)


def test_kernels_of_another_gpu_grow_by_what_binds_them() -> None:
    """The memory of an H100 and a sixth of its arithmetic: what does not compute stays as it is."""
    h100 = load_gpu("h100")
    slow = replace(h100, name="slow", fp16_flops=h100.fp16_flops / 6, fp8_flops=h100.fp8_flops / 6)
    same = replace(h100, name="same")
    shape, layout = load_model("qwen3-235b-a22b"), Layout(8)
    ours, twin, slower = (Operators(shape, gpu, layout, "sglang") for gpu in (h100, same, slow))
    one, prompt = decode(1, 1000), prefill(8192)
    assert twin.step_ns(prompt) == pytest.approx(ours.step_ns(prompt), rel=1e-6)
    assert slower.step_ns(one) == pytest.approx(ours.step_ns(one), rel=0.1)
    assert 1.5 < slower.step_ns(prompt) / ours.step_ns(prompt) < 6


def test_a_step_with_prompts_takes_at_least_the_launches_of_its_layers() -> None:
    """No CUDA graph holds them; one of decodes alone is in a graph."""
    plain = MODELS[0]
    bound = plain.with_terms(EngineTerms(launch_layer_ns=2e6))
    free = plain.with_terms(EngineTerms())
    layers = load_model("deepseek-r1").layers
    assert bound.step_ns(prefill(16)) == layers * 2_000_000
    assert bound.step_ns(prefill(65536)) == free.step_ns(prefill(65536)) > layers * 2_000_000
    assert bound.step_ns(decode(4, 4000)) == free.step_ns(decode(4, 4000))


def test_steps_of_few_prompt_tokens_wait_for_no_launches_where_graphs_hold_them() -> None:
    """vLLM has graphs of up to 512 tokens by default, SGLang and TensorRT-LLM none of steps with prompts."""
    slow = EngineTerms(launch_layer_ns=10e6)
    layers = load_model("gpt-oss-120b").layers
    for engine, held in (("vllm", True), ("sglang", False), ("trtllm", False)):
        model = operators("gpt-oss-120b", "h200", Layout(1), engine).with_terms(slow)
        assert model.step_ns(prefill(513)) == layers * 10e6
        assert (model.step_ns(prefill(512)) < layers * 10e6) == held


def test_graphs_of_prompts_reach_as_far_as_the_captured_sizes_of_a_server() -> None:
    """`max_cudagraph_capture_size` of vLLM; the graphs of SGLang are of decodes alone."""
    shape, h200, slow = load_model("gpt-oss-120b"), load_gpu("h200"), EngineTerms(launch_layer_ns=10e6)
    bound_ns = shape.layers * 10e6
    for most in (8, 512, 2048):
        graphs = KernelOptions(graphs=default_sizes("vllm", h200, 1, 256, most, True))
        vllm, sglang = (
            Operators(shape, h200, Layout(1), engine, options=graphs, terms=slow)
            for engine in ("vllm", "sglang")
        )
        assert vllm.step_ns(prefill(most)) < bound_ns
        assert vllm.step_ns(prefill(most + 1)) == sglang.step_ns(prefill(most)) == bound_ns


def test_fused_norms_take_no_time_beside_an_all_reduce_and_none_off_alone() -> None:
    """Static FP8 scales are applied there, too; a step of many tokens is as it was."""

    def priced(tp: int, fused: bool, model: str = "llama-3.1-70b-fp8") -> Operators:
        shape, gpu = load_model(model), load_gpu("b200")
        found = Served(shape, gpu, Layout(tp), "trtllm", fused_norms=fused).model()
        assert isinstance(found, Operators)
        return found

    few, many = decode(16, 16_000), prefill(8192)
    saved = priced(4, False).step_ns(few) - priced(4, True).step_ns(few)
    assert 0.2e6 < saved < 2e6
    assert priced(4, False).step_ns(many) == priced(4, True).step_ns(many)
    assert priced(1, False).step_ns(few) == priced(1, True).step_ns(few)


@pytest.mark.parametrize("gpu", ["h100", "h200"])
@pytest.mark.parametrize(("model", "tp"), [("llama-4-scout", 4), ("mixtral-8x7b", 2), ("qwen3-30b-a3b", 1)])
def test_experts_in_eight_bits_take_no_longer_than_in_sixteen_under_vllm(
    gpu: str, model: str, tp: int
) -> None:
    """By tensor or channel as with block scales: half the bytes of 16 bits."""
    wide = load_model(model)
    halves = replace(wide.weights, experts=1.0, arithmetic="fp8", block_scales=False)

    def experts(weights: Weights) -> Any:
        learned, _ = surfaces_for(load_gpu(gpu), "vllm")
        listed = OperatorList(replace(wide, weights=weights), load_gpu(gpu), Layout(tp), learned)
        return listed.of_computed(2.0 ** np.arange(4, 12))

    assert (experts(halves) <= 1.05 * experts(wide.weights)).all()


def test_a_host_launches_as_slowly_as_it_was_measured() -> None:
    """SGLang's attention module was timed with its launches, on Grace and on x86; that of others was not."""
    terms = EngineTerms(launch_layer_ns=2e6)
    for engine, slower in (("sglang", 1.63), ("trtllm", 1.0)):
        x86, grace = (
            operators("deepseek-r1", gpu, Layout(4), engine).with_terms(terms) for gpu in ("b200", "gb200")
        )
        assert grace.step_ns(prefill(16)) / x86.step_ns(prefill(16)) == pytest.approx(slower, rel=0.05)
        assert grace.step_ns(decode(4, 4000)) == pytest.approx(x86.step_ns(decode(4, 4000)), rel=0.1)


def test_the_term_of_block_scales_is_that_of_prompts_of_models_with_such_weights() -> None:
    slower = EngineTerms(prefill_block_scale=1.5)
    for name, factor in (("deepseek-r1", 1.5), ("deepseek-v3.1-nvfp4", 1.0)):
        plain = operators(name, "b200").with_terms(EngineTerms())
        scaled = plain.with_terms(slower)
        assert scaled.step_ns(prefill(8192)) == pytest.approx(factor * plain.step_ns(prefill(8192)), rel=1e-6)
        assert scaled.step_ns(decode(8, 8000)) == plain.step_ns(decode(8, 8000))


def test_a_kind_of_model_that_was_not_learned_on_is_not_launched_like_another_kind() -> None:
    """Under SGLang only hybrid and latent attention was seen on Blackwell: plain experts have the terms of
    Hopper, and a note."""
    b200, h200 = load_gpu("b200"), load_gpu("h200")
    plain, hybrid = load_model("gpt-oss-120b"), load_model("qwen3.5-397b-a17b")
    assert terms_of("sglang", b200, plain) == terms_of("sglang", h200, plain)
    assert terms_of("sglang", b200, hybrid) != terms_of("sglang", b200, plain)
    assert terms_of("vllm", b200, hybrid) == terms_of("vllm", b200, plain), "no hybrid model was seen there"
    assert "not learned on together" in operators("gpt-oss-120b", "b200", Layout(1)).beyond()


def test_a_kernel_of_experts_chosen_by_name_is_priced_by_whichever_engine_measured_it() -> None:
    def priced(backend: str) -> float:
        shape, gpu = load_model("deepseek-v3.1-nvfp4"), load_gpu("b200")
        layout = Layout(4, 4, 4)
        model = build(
            "trained", shape=shape, gpu=gpu, tp=4, layout=layout, kernels="sglang", moe_backend=backend
        )
        return model.step_ns(prefill(32768))

    assert priced("flashinfer_cutlass") == priced("cutlass") != priced("flashinfer_trtllm")
    assert priced("flashinfer_trtllm") == priced("auto"), "SGLang's default on Blackwell"
    assert priced("of-no-table") > 0, "by all kernels"


def test_triton_s_experts_with_block_scales_have_a_price_of_their_own_on_blackwell() -> None:
    """The kernel that vLLM falls back to there, measured by SGLang for 64 experts of a rank: longer than
    TensorRT-LLM's, which vLLM has by itself."""
    shape, gpu, layout = load_model("minimax-m2.5"), load_gpu("b200"), Layout(4, 1, 4)
    learned, _ = surfaces_for(gpu, "vllm")
    tokens = np.array([4.0, 128.0])
    triton, auto = (
        OperatorList(shape, gpu, layout, learned, KernelOptions(moe_backend=kernel)).of_computed(tokens)
        for kernel in ("triton", "auto")
    )
    extra_us = (triton - auto) / shape.layers / 1e3
    assert extra_us == pytest.approx([62.2 - 45.6, 236.5 - 167.2], rel=0.2), "rows of both tables"


def test_marlin_s_experts_follow_the_tokens_that_an_expert_receives() -> None:
    """Experts of gpt-oss reach the arithmetic of Kimi's int4 ones at as many tokens an expert (rows of vLLM's
    table on H200: 144 TFLOP/s at 32, 242 at 256), padded to 3,072 x 2,944. Triton's are faster for long
    prompts alone."""
    shape, gpu, layout = load_model("gpt-oss-120b"), load_gpu("h200"), Layout(1)
    learned, _ = surfaces_for(gpu, "vllm")
    tokens = np.array([1024.0, 8192.0])
    marlin, auto = (
        OperatorList(shape, gpu, layout, learned, KernelOptions(moe_backend=kernel)).of_computed(tokens)
        for kernel in ("marlin", "auto")
    )
    tflops = tokens * 4 * 6 * 3072 * 2944 / 1e12
    ms = marlin / shape.layers / 1e6
    assert tflops / (ms / 1e3) == pytest.approx([144, 242], rel=0.15)
    assert marlin[1] > 1.5 * auto[1]


def test_marlin_multiplies_half_of_each_expert_on_two_gpus() -> None:
    shape, gpu = load_model("gpt-oss-120b"), load_gpu("h200")
    learned, _ = surfaces_for(gpu, "vllm")
    whole, half = (
        OperatorList(shape, gpu, Layout(tp), learned, KernelOptions(moe_backend="marlin"))._by_marlin(
            np.array([8192.0])
        )
        for tp in (1, 2)
    )
    assert whole is not None
    assert half == pytest.approx(whole / 2, rel=0.1)


def test_marlin_multiplies_weights_of_4_bits_alone() -> None:
    shape, gpu, layout = load_model("minimax-m2.5"), load_gpu("h200"), Layout(4, 1, 4)
    learned, _ = surfaces_for(gpu, "vllm")
    marlin, auto = (
        OperatorList(shape, gpu, layout, learned, KernelOptions(moe_backend=kernel)).of_computed(
            np.array([128.0])
        )
        for kernel in ("marlin", "auto")
    )
    assert marlin == auto


def test_tensorrt_llm_multiplies_mxfp4_on_hopper_by_openai_s_kernels() -> None:
    """Rows of vLLM's table on H200, a group of 64 of the 128 experts; its own kernel takes half as long again
    for 8,192 tokens."""
    shape, gpu, layout = load_model("gpt-oss-120b"), load_gpu("h200"), Layout(2, 1, 2)
    learned, _ = surfaces_for(gpu, "trtllm")
    tokens = np.array([1024.0, 8192.0])
    triton, auto, own = (
        OperatorList(shape, gpu, layout, learned, KernelOptions(moe_backend=kernel))._experts(tokens, True)
        for kernel in ("triton", "auto", "cutlass")
    )
    assert triton / 1e6 == pytest.approx([25.67 / 36, 79.42 / 36], rel=0.1)
    assert (auto == triton).all()
    assert own[1] > 1.5 * triton[1]


def test_flashinfer_s_experts_by_cutlass_on_hopper_are_those_that_tensorrt_llm_measured() -> None:
    """Rows of its table on H200: MiniMax-M2's experts in a quarter, evenly loaded, which vLLM multiplies by
    Triton unless it is set otherwise."""
    shape, gpu, layout = load_model("minimax-m2.5"), load_gpu("h200"), Layout(4)
    learned, _ = surfaces_for(gpu, "vllm")
    tokens = np.array([1.0, 8192.0])
    cutlass, triton = (
        OperatorList(shape, gpu, layout, learned, KernelOptions(moe_backend=kernel))._experts(tokens, True)
        for kernel in ("flashinfer_cutlass", "auto")
    )
    assert cutlass / 1e3 == pytest.approx([101.4, 2470.8], rel=0.1)
    assert (cutlass > 1.5 * triton).all()


def test_deepep_brings_tokens_to_their_experts_by_a_mode_for_prompts_and_one_for_decodes() -> None:
    shape, layout = load_model("deepseek-r1"), Layout(8, 8, 8)
    gpu, tokens = load_gpu("gb200"), np.array([512.0])
    learned, _ = surfaces_for(gpu, "sglang")
    own = OperatorList(shape, gpu, layout, learned, KernelOptions(moe_backend="deepep"))
    assert own.dispatches
    of = next(one for one in learned if one.engine == "deepep").of
    sent = work.all_to_all(gpu, tokens / 8, shape.hidden, shape.experts_per_token)
    for mode, prompts in (("deepep", True), ("deepep-ll", False)):
        exchange_ns = own.of_feed_forward(tokens, prompts) - own.of_computed(tokens, prompts)
        assert exchange_ns == pytest.approx(shape.layers * of[f"all_to_all/{mode}"].ns(sent))
    assert own.of_computed(tokens, True)[0] != own.of_computed(tokens, False)[0]
    alone = OperatorList(shape, gpu, Layout(8), learned, KernelOptions(moe_backend="deepep"))
    assert not alone.dispatches, "experts that are not distributed"


def test_prompts_under_deepep_have_no_term_of_block_scales() -> None:
    """It was learned on other kernels of experts."""
    options, slower = KernelOptions(moe_backend="deepep"), EngineTerms(prefill_block_scale=1.5)
    shape, gpu = load_model("deepseek-r1"), load_gpu("gb200")
    plain, scaled = (
        Operators(shape, gpu, Layout(8, 8, 8), "sglang", options=options, terms=terms)
        for terms in (EngineTerms(), slower)
    )
    assert plain.step_ns(prefill(8192)) == scaled.step_ns(prefill(8192))


@pytest.mark.parametrize(
    ("engine", "kernel", "reduces"),
    [("sglang", "flashinfer_trtllm", 2.0), ("trtllm", "trtllm", 1.0), ("sglang", "flashinfer_cutlass", 1.0)],
)
def test_prompts_of_sglang_are_gathered_by_an_all_reduce_of_their_own(
    engine: str, kernel: str, reduces: float
) -> None:
    """With replicated attention; tokens in 4 bits for experts by CUTLASS excepted."""
    shape, gpu, tokens = load_model("deepseek-v3.1-nvfp4"), load_gpu("b200"), np.array([65536.0])
    learned, _ = surfaces_for(gpu, engine)
    operators = OperatorList(shape, gpu, Layout(4, 4), learned, KernelOptions(moe_backend=kernel))
    exchange_ns = operators.of_feed_forward(tokens, True) - operators.of_computed(tokens, True)
    share = reduces if reduces > 1 else 0.5 + 0.5 * work.WEIGHT_BYTES["nvfp4"] / 2
    assert exchange_ns == pytest.approx(share * shape.layers * operators.all_reduce(4, tokens))


def test_vllm_quantises_to_static_fp8_within_norms_and_activations() -> None:
    """Its compiler joins them; the output of attention is quantised by a kernel of its own."""
    shape, gpu, tokens = load_model("llama-3.1-70b-fp8"), load_gpu("b200"), np.array([4.0])
    own, _ = surfaces_for(gpu, "vllm")
    joined, apart = (
        OperatorList(shape, gpu, Layout(1), [replace(own[0], engine=engine), *own[1:]])
        for engine in ("vllm", "sglang")
    )
    kernel_ns = apart.of_attention(tokens) - joined.of_attention(tokens)
    assert 80 * 1e3 < kernel_ns[0] < 80 * 4e3, "one kernel of each layer, between 1 and 4 us"
    saved_ns = apart.of_feed_forward(tokens) - joined.of_feed_forward(tokens)
    assert saved_ns[0] == pytest.approx(2 * kernel_ns[0], rel=0.2)


@pytest.mark.parametrize("gpu", ["h100", "h200"])
@pytest.mark.parametrize(("model", "tp"), [("deepseek-r1", 8), ("gpt-oss-120b", 1)])
def test_engines_decode_about_as_fast_on_the_same_gpu(model: str, tp: int, gpu: str) -> None:
    """Tables with launches from Python, or of kernels that no server runs, stand out by a factor."""
    for seqs, context in ((1, 1024), (64, 1024), (256, 2048)):
        step = decode(seqs, seqs * context)
        prices = [operators(model, gpu, Layout(tp), engine).step_ns(step) for engine in ENGINES]
        assert max(prices) < 1.8 * min(prices)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("model", "gpus", "ep", "width"),
    [("qwen3-235b-a22b-fp8", 8, 2, 192), ("minimax-m2.5", 8, 2, 192), ("qwen3-30b-a3b-fp8", 4, 2, 192)],
)
def test_experts_are_not_split_within_a_block_of_scales(
    model: str, gpus: int, ep: int, width: int, engine: str
) -> None:
    """ "The output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n"."""
    with pytest.raises(InputError) as error:
        operators(model, "h200", Layout(gpus), engine)
    assert f"leaves a rank {width} of the" in str(error.value)
    assert f"use fewer GPUs, or --ep {ep}" in str(error.value)
    assert operators(model, "h200", Layout(gpus, 1, ep), engine)
    assert operators(model, "h200", Layout(gpus), "trtllm")
    shape, layout = load_model(model.removesuffix("-fp8")), Layout(gpus // 2)
    assert build("trained", shape=shape, gpu=load_gpu("h200"), tp=gpus // 2, layout=layout, kernels=engine)


def test_number_formats_of_as_many_bits_were_not_learned_on_by_one_another() -> None:
    """Terms of vLLM on H200 were learned on MXFP4; AWQ and NVFP4 run other kernels."""
    learned = operators("gpt-oss-120b", "h200", Layout(1), "vllm")
    assert not learned.beyond()
    for weights, name in ((Weights.of(0.52), "INT4"), (Weights.of(0.5625, "fp4"), "NVFP4")):
        shape = replace(load_model("gpt-oss-120b"), weights=weights)
        other = Served(shape, load_gpu("h200"), Layout(1)).model()
        assert isinstance(other, Operators)
        assert f"servers of vllm with MoE {name} on H200 TP1" in other.beyond()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_small_all_reduces_over_pcie_take_its_latency_and_large_ones_its_bandwidth(engine: str) -> None:
    """Not the latency of the NVLink that was measured, nor its share of a bandwidth thirty times as high."""
    pcie, shape = load_gpu("l40s"), load_model("qwen3-30b-a3b")
    for gpu in ("l40s", "rtx-5090"):
        found = operators("qwen3-30b-a3b", gpu, Layout(2), engine)._list
        small, large = found.all_reduce(2, np.array([1.0, 8192.0]))
        wire_ns = 8192 * shape.hidden * 2 / (load_gpu(gpu).link_bytes_per_s / 1e9)
        assert pcie.all_reduce_overhead_ns - 7000 < small < 2 * pcie.all_reduce_overhead_ns
        assert wire_ns < large < 3 * wire_ns
        middle = found.all_reduce(2, np.array([512.0]))[0]
        assert middle < small + 3 * wire_ns / 16
