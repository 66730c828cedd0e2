"""KV capacity: the one formula, and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from blis_py.errors import InputError
from blis_py.hardware.capacity import (
    default_max_model_len,
    kv_capacity,
    kv_heads_per_rank,
    model_weight_bytes,
    rank_weight_bytes,
)
from blis_py.hardware.gpu import GIB, load_gpu
from blis_py.hardware.layout import Layout
from blis_py.models.model_shape import load_model
from blis_py.models.weights import Weights


def blocks(model: str, gpu: str, tp: int = 1, **options: float) -> int:
    return kv_capacity(load_model(model), load_gpu(gpu), tp, **options).blocks  # type: ignore[arg-type]


def test_qwen3_14b_on_one_h100_has_the_peers_15909_blocks() -> None:
    assert blocks("qwen/qwen3-14b", "H100") == 15_909


def test_the_parts_add_up_to_the_usable_memory() -> None:
    capacity = kv_capacity(load_model("qwen3-14b"), load_gpu("H100"))
    assert capacity.usable_bytes == 72 * GIB
    assert capacity.weight_bytes == 2 * 14_768_296_960
    assert capacity.activation_bytes == 5.5 * GIB
    assert capacity.overhead_bytes == int(0.15 * GIB)
    assert capacity.block_bytes == 16 * 163_840
    assert capacity.blocks == capacity.kv_bytes // capacity.block_bytes
    assert capacity.tokens == 15_909 * 16


def test_embeddings_that_are_tied_are_counted_once() -> None:
    tied = load_model("qwen3-0.6b")
    untied = replace(tied, tied_embeddings=False)
    sizes = [kv_capacity(shape, load_gpu("H100")).weight_bytes for shape in (tied, untied)]
    assert sizes == [2 * tied.parameters, 2 * tied.parameters + 2 * 151_936 * 1024]


def test_the_description_is_one_line_that_starts_with_the_result() -> None:
    line = kv_capacity(load_model("qwen3-14b"), load_gpu("H100")).describe()
    assert line.startswith("KV capacity: 15,909 blocks of 16 = 254,544 tokens (qwen3-14b on H100 TP1")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("model", "tp", "measured"), [("llama-2-70b", 4, 31_356), ("codellama-34b", 2, 26_602)]
)
def test_tensor_parallel_pools_are_within_5_percent_of_real_servers(
    model: str, tp: int, measured: int
) -> None:
    # vLLM 0.15 on H100 SXM, blocks of 16, as logged in public per-step traces (Apache-2.0)
    assert blocks(model, "H100", tp) == pytest.approx(measured, rel=0.05)


def test_a_rank_holds_its_share_of_the_model_and_of_every_block() -> None:
    shape, gpu = load_model("llama-3.1-70b"), load_gpu("H200")
    capacity = kv_capacity(shape, gpu, 8)
    assert capacity.weight_bytes == 141_107_412_992 // 8
    assert capacity.block_bytes == 16 * shape.kv_bytes_per_token // 8
    held = capacity.blocks * capacity.block_bytes + capacity.weight_bytes
    assert held + capacity.activation_bytes + capacity.overhead_bytes <= capacity.usable_bytes


@pytest.mark.parametrize(("layout", "key"), [(Layout(8, 3), "--attention-dp"), (Layout(8, 1, 5), "--ep")])
def test_a_division_that_leaves_a_rest_is_refused_with_those_that_do_not(layout: Layout, key: str) -> None:
    with pytest.raises(InputError, match=f"{key}: does not divide the 8 GPUs .*use one of 1, 2, 4, 8"):
        layout.check(load_model("qwen3-30b-a3b"))


@pytest.mark.parametrize("attention_dp", [1, 8])
def test_copies_of_experts_are_further_weights_of_the_ranks(attention_dp: int) -> None:
    shape = load_model("qwen3-30b-a3b")
    plain, more = (rank_weight_bytes(shape, Layout(8, attention_dp, 8, copies)) for copies in (0, 16))
    assert more - plain == pytest.approx(
        shape.moe_layers * 16 / 8 * shape.expert_parameters * shape.dtype_bytes
    )
    if attention_dp == 1:
        assert plain == model_weight_bytes(shape) / 8


def test_kv_heads_fewer_than_ranks_are_replicated() -> None:
    shape = load_model("qwen3-30b-a3b")  # 4 KV heads
    assert [kv_heads_per_rank(shape, tp) for tp in (1, 2, 4, 8)] == [4, 2, 1, 1]
    four, eight = (kv_capacity(shape, load_gpu("H100"), tp) for tp in (4, 8))
    assert four.block_bytes == eight.block_bytes


def test_a_sparse_model_sets_more_aside_for_activations() -> None:
    capacity = kv_capacity(load_model("qwen3-30b-a3b"), load_gpu("H100"))
    assert capacity.activation_bytes == 8 * GIB


def test_only_the_experts_of_gpt_oss_are_4_bit() -> None:
    capacity = kv_capacity(load_model("gpt-oss-120b"), load_gpu("H100"))
    assert capacity.weight_bytes / 1e9 == pytest.approx(65.2, rel=0.02)  # size of the checkpoint


def test_more_memory_more_ranks_or_a_larger_fraction_never_means_fewer_blocks() -> None:
    assert blocks("llama-3.1-8b", "H200") > blocks("llama-3.1-8b", "H100")
    assert blocks("llama-3.1-8b", "H100", 2) > blocks("llama-3.1-8b", "H100", 1)
    smaller = blocks("llama-3.1-8b", "H100", gpu_memory_utilization=0.8)
    assert blocks("llama-3.1-8b", "H100") > smaller


def test_a_model_that_does_not_fit_is_refused_with_what_would_help() -> None:
    with pytest.raises(InputError) as error:
        blocks("llama-3.1-70b", "H100")
    assert "does not fit on H100 at TP1" in str(error.value)
    assert "each GPU needs 137.1 GiB before any KV, 72.0 GiB are usable" in str(error.value)  # 131.4 + 5.65
    assert "try --tp 2 or" in str(error.value)
    assert "a checkpoint with 4-bit weights" in str(error.value)  # in FP8 they are 67.7 GiB


def test_every_suggestion_fits() -> None:
    shape, gpu = load_model("qwen3-14b"), load_gpu("L40S")
    with pytest.raises(InputError) as error:
        kv_capacity(shape, gpu, gpu_memory_utilization=0.6)
    message = str(error.value)
    tp = int(re.search(r"--tp (\d+)", message)[1])  # type: ignore[index]
    fraction = float(re.search(r"utilization ([\d.]+)", message)[1])  # type: ignore[index]
    assert "FP8 weights" in message
    assert kv_capacity(shape, gpu, tp, gpu_memory_utilization=0.6).tokens >= 2048
    assert kv_capacity(shape, gpu, gpu_memory_utilization=fraction).tokens >= 2048
    fp8 = replace(shape, weights=Weights.of(1.0))
    assert kv_capacity(fp8, gpu, gpu_memory_utilization=0.6).tokens >= 2048


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 3}, r"--tp: does not divide .* use one of 1, 2, 4, 8"),
        ({"tp": 0}, "--tp: must be at least 1"),
        ({"tp": 5}, r"--tp: does not divide the 40 heads and 8 KV heads"),
        ({"tp": 16}, r"--tp: does not divide the 40 heads and 8 KV heads"),
        ({"gpu_memory_utilization": 90}, "--gpu-memory-utilization: not a fraction"),
        ({"gpu_memory_utilization": 0}, "--gpu-memory-utilization: not a fraction"),
        ({"block_size": 0}, "--block-size: must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        kv_capacity(load_model("qwen3-14b"), load_gpu("H100"), **options)  # type: ignore[arg-type]


def test_the_default_length_limit_is_the_models_or_what_the_blocks_hold() -> None:
    shape = load_model("qwen3-14b")
    assert default_max_model_len(shape, 15_909, 16) == 40_960
    assert default_max_model_len(shape, 100, 16) == 1_600
