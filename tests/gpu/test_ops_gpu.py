"""The ops on a GPU: bf16 against float32, CUDA C++ against the references, poison, graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch

from engine.kernels import (
    QkNorm,
    SamplingTensors,
    align_experts,
    backend,
    copy_pages,
    fused_moe,
    qk_norm_rope_store,
    rms_norm,
    route_grouped_sigmoid,
    route_softmax,
    sample,
    swiglu,
)
from engine.kernels.fp8 import FP8, LARGEST
from engine.kernels.prepare import DecodeInputs, DecodeState, prepare_decodes

Tensor = torch.Tensor
T = TypeVar("T")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BF16 = {"rtol": 1.6e-2, "atol": 1e-2}  # two units in the last place of bf16, and its noise around zero


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def randn(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device="cuda") * scale).bfloat16()


def reference(run: Callable[[], T]) -> T:
    with backend.force("reference"):
        return run()


# ---- Triton ----

NORM_SHAPES = [(t, d) for d in (128, 1000, 1024, 2048, 4096, 5120) for t in (1, 7, 300)]


@pytest.mark.parametrize(("tokens", "d"), NORM_SHAPES)
def test_rms_norm_in_bf16(tokens: int, d: int) -> None:
    x, residual, weight = randn(tokens, d), randn(tokens, d), randn(d)
    for args in ((x, weight, 1e-6), (x, weight, 1e-6, residual)):
        torch.testing.assert_close(rms_norm(*args), reference(lambda args=args: rms_norm(*args)), **BF16)


@pytest.mark.parametrize("f", [64, 768, 1000, 3072, 5120, 14336])
@pytest.mark.parametrize("tokens", [1, 77])
def test_swiglu_in_bf16(tokens: int, f: int) -> None:
    x = randn(tokens, 2 * f, scale=3)
    torch.testing.assert_close(swiglu(x), reference(lambda: swiglu(x)), **BF16)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary_dim", "norm"),
    [
        (32, 8, 128, 128, True),
        (32, 8, 128, 128, False),
        (16, 4, 128, 64, True),
        (14, 2, 64, 64, False),
        (4, 4, 96, 96, True),
        (10, 2, 80, 80, False),
        (28, 4, 80, 40, True),
    ],
)
@pytest.mark.parametrize("page_size", [16, 64, 256])
def test_qk_norm_rope_store_in_bf16(
    heads: int, kv_heads: int, head_dim: int, rotary_dim: int, norm: bool, page_size: int
) -> None:
    tokens, pages = 53, 12
    qkv = randn(tokens, (heads + 2 * kv_heads) * head_dim)
    angles = torch.rand(4096, rotary_dim // 2, device="cuda") * 6
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    positions = torch.randint(0, 4096, (tokens,), device="cuda")
    slots = torch.randperm(pages * page_size, device="cuda")[:tokens]
    slots[::9] = -1
    qk_norm = QkNorm(randn(head_dim), randn(head_dim), 1e-6) if norm else None

    def run() -> tuple[Tensor, Tensor, Tensor]:
        k_cache = torch.full((pages, kv_heads, page_size, head_dim), float("nan"), device="cuda").bfloat16()
        v_cache = k_cache.clone()
        q = qk_norm_rope_store(qkv, cos_sin, positions, slots, k_cache, v_cache, qk_norm)
        return q, k_cache, v_cache

    torch.testing.assert_close(run(), reference(run), equal_nan=True, **BF16)


def test_keys_and_values_are_stored_in_float8() -> None:
    tokens, heads, kv_heads, head_dim, page_size = 53, 8, 2, 128, 64
    qkv = randn(tokens, (heads + 2 * kv_heads) * head_dim, scale=100)
    angles = torch.rand(tokens, head_dim // 2, device="cuda") * 6
    positions, cos_sin = torch.arange(tokens, device="cuda"), torch.cat([angles.cos(), angles.sin()], dim=1)
    slots = torch.randperm(4 * page_size, device="cuda")[:tokens]

    def stored() -> tuple[Tensor, Tensor]:
        caches = [torch.zeros(4, kv_heads, page_size, head_dim, device="cuda", dtype=FP8) for _ in range(2)]
        qk_norm_rope_store(qkv, cos_sin, positions, slots, *caches, None)
        return caches[0].float(), caches[1].float()

    (keys, values), (expected_keys, expected_values) = stored(), reference(stored)
    assert torch.equal(values, expected_values)
    assert values.abs().max() == LARGEST
    torch.testing.assert_close(keys, expected_keys, rtol=0.13, atol=0.1)  # a last place of float8


def test_keys_and_values_are_stored_beyond_2_to_the_31_elements() -> None:
    tokens, heads, kv_heads, head_dim, page_size = 53, 32, 8, 128, 16
    first = 2**31 // (kv_heads * page_size * head_dim)
    qkv = randn(tokens, (heads + 2 * kv_heads) * head_dim)
    positions, cos_sin = torch.arange(tokens, device="cuda"), torch.rand(tokens, head_dim, device="cuda")
    slots = torch.randperm(8 * page_size, device="cuda")[:tokens]

    def stored(pages_before: int) -> tuple[Tensor, Tensor, Tensor]:
        shape = (pages_before + 8, kv_heads, page_size, head_dim)
        caches = [torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        q = qk_norm_rope_store(qkv, cos_sin, positions, slots + pages_before * page_size, *caches, None)
        return q, caches[0][pages_before:].clone(), caches[1][pages_before:].clone()

    for far, near in zip(stored(first), stored(0), strict=True):
        assert torch.equal(far, near)


MOE_SHAPES = [
    (t, *model)
    for model in ((128, 8, 2048, 768), (256, 8, 2048, 512), (8, 2, 1024, 3584), (6, 3, 200, 104))
    for t in (1, 33, 128, 700)
]


@pytest.mark.parametrize(("tokens", "experts", "top_k", "d", "f"), MOE_SHAPES)
def test_fused_moe_in_bf16(tokens: int, experts: int, top_k: int, d: int, f: int) -> None:
    x = randn(tokens, d)
    w13, w2 = randn(experts, 2 * f, d, scale=d**-0.5), randn(experts, d, f, scale=f**-0.5)
    weights, ids = route_softmax(randn(tokens, experts), top_k, True)
    expected = reference(lambda: fused_moe(x.float(), w13.float(), w2.float(), weights, ids))
    torch.testing.assert_close(fused_moe(x, w13, w2, weights, ids).float(), expected, rtol=2e-2, atol=2e-2)


def test_fused_moe_reads_no_expert_without_rows() -> None:
    x, w13, w2 = randn(4, 256), randn(16, 256, 256, scale=0.06), randn(16, 256, 128, scale=0.09)
    ids = torch.tensor([[3, 7]] * 4, device="cuda", dtype=torch.int32)
    weights = torch.full((4, 2), 0.5, device="cuda")
    expected = fused_moe(x, w13, w2, weights, ids)
    for expert in set(range(16)) - {3, 7}:
        w13[expert], w2[expert] = float("nan"), float("nan")
    assert torch.equal(fused_moe(x, w13, w2, weights, ids), expected)


def test_outputs_are_written_whole_whatever_the_memory_held() -> None:
    x, w13, w2 = randn(70, 256), randn(8, 256, 256, scale=0.06), randn(8, 256, 128, scale=0.09)
    weights, ids = route_softmax(randn(70, 8), 2, True)
    expected = fused_moe(x, w13, w2, weights, ids)
    torch.cuda.empty_cache()
    poison = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(20)]
    del poison  # the allocator hands this memory out next
    assert torch.equal(fused_moe(x, w13, w2, weights, ids), expected)
    assert rms_norm(x, x[0], 1e-6).isfinite().all()


# ---- CUDA C++ ----


def test_the_cuda_kernels_are_there() -> None:
    from engine.kernels.cuda import library

    assert library.available()


@pytest.mark.parametrize(("experts", "top_k"), [(8, 2), (60, 4), (64, 8), (128, 8), (256, 8), (512, 10)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_routing_equals_the_reference(experts: int, top_k: int, dtype: torch.dtype) -> None:
    logits = torch.randn(1000, experts, device="cuda").to(dtype)
    for renormalize in (True, False):
        weights, ids = route_softmax(logits, top_k, renormalize)
        expected_weights, expected_ids = reference(lambda r=renormalize: route_softmax(logits, top_k, r))
        assert torch.equal(ids, expected_ids)
        torch.testing.assert_close(weights, expected_weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("experts", "groups", "keep", "top_k"),
    [
        (256, 8, 4, 8),
        (256, 1, 1, 8),
        (256, 16, 8, 12),
        (64, 8, 3, 6),
        (64, 2, 1, 1),
        (16, 4, 4, 4),
        (32, 4, 2, 8),
        (128, 8, 8, 8),
        (160, 8, 3, 6),
        (384, 12, 4, 8),
        (512, 32, 2, 5),
        (512, 8, 4, 10),
    ],
)
def test_grouped_routing_equals_the_reference_up_to_near_ties(
    experts: int, groups: int, keep: int, top_k: int
) -> None:
    logits, bias = torch.randn(2000, experts, device="cuda"), torch.randn(experts, device="cuda") * 0.2
    args = (logits, bias, top_k, groups, keep, True, 2.5)
    weights, ids = route_grouped_sigmoid(*args)
    expected_weights, expected_ids = reference(lambda: route_grouped_sigmoid(*args))
    same = (ids == expected_ids).all(dim=1)
    assert same.float().mean() > 0.998  # sigmoids that differ in the last place may swap two experts
    torch.testing.assert_close(weights[same], expected_weights[same], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tokens", [1, 5, 128, 513, 4096])
@pytest.mark.parametrize(
    ("experts", "top_k", "block_m"), [(8, 2, 16), (128, 8, 64), (256, 8, 32), (1, 1, 128)]
)
def test_alignment_equals_the_reference(tokens: int, experts: int, top_k: int, block_m: int) -> None:
    ids = torch.rand(tokens, experts, device="cuda").argsort(dim=1)[:, :top_k].to(torch.int32)
    found = align_experts(ids, experts, block_m)
    expected = reference(lambda: align_experts(ids, experts, block_m))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def some_settings(rows: int, vocabulary: int, masked: bool) -> SamplingTensors:
    def sometimes(share: float, values: Tensor, off: float) -> Tensor:
        chosen = torch.rand(rows, device="cuda") < share
        return torch.where(chosen, values, torch.tensor(off, dtype=values.dtype, device="cuda"))

    words = (rows, (vocabulary + 31) // 32)
    return SamplingTensors(
        temperature=sometimes(0.85, torch.rand(rows, device="cuda") * 1.5 + 0.05, 0.0),
        top_k=sometimes(0.5, torch.randint(1, 200, (rows,), dtype=torch.int32, device="cuda"), 0),
        top_p=sometimes(0.5, torch.rand(rows, device="cuda"), 1.0),
        min_p=sometimes(0.3, torch.rand(rows, device="cuda") * 0.2, 0.0),
        seeds=torch.randint(-(2**62), 2**62, (rows,), device="cuda"),
        positions=torch.randint(0, 2**40, (rows,), device="cuda"),
        bitmask=torch.randint(-(2**31), 2**31, words, device="cuda").to(torch.int32) if masked else None,
    )


@pytest.mark.parametrize("vocabulary", [512, 32_003, 128_256, 151_936, 157_184])
@pytest.mark.parametrize("spread", [1.0, 4.0])
@pytest.mark.parametrize("masked", [False, True])
def test_the_sampler_draws_the_tokens_of_the_reference(vocabulary: int, spread: float, masked: bool) -> None:
    rows = 64
    logits = torch.randn(rows, vocabulary, device="cuda") * spread
    settings = some_settings(rows, vocabulary, masked)
    found, expected = sample(logits, settings), reference(lambda: sample(logits, settings))
    # Float ties: a token at the edge of the kept mass, or two noisy logits that differ in the last place.
    assert (found != expected).sum() <= 1
    assert torch.equal(found, sample(logits, settings))


def test_greedy_sampling_is_exact() -> None:
    logits = torch.randn(200, 151_936, device="cuda").bfloat16().float()  # many exact ties
    settings = some_settings(200, 151_936, False)
    settings.temperature.zero_()
    assert torch.equal(sample(logits, settings), logits.argmax(dim=-1))


def test_a_sample_does_not_depend_on_its_place_in_the_batch() -> None:
    logits, settings = torch.randn(32, 50_000, device="cuda") * 3, some_settings(32, 50_000, False)
    together = sample(logits, settings)
    order = torch.randperm(32, device="cuda")
    names = ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")
    shuffled = SamplingTensors(**{name: getattr(settings, name)[order] for name in names})
    assert torch.equal(sample(logits[order], shuffled), together[order])


@pytest.mark.parametrize("page_size", [16, 32, 64, 256])
@pytest.mark.parametrize(("heads", "head_dim"), [(8, 128), (1, 64), (4, 96)])
def test_page_copies_equal_the_reference(page_size: int, heads: int, head_dim: int) -> None:
    k, v = randn(40, heads, page_size, head_dim), randn(40, heads, page_size, head_dim)
    order = torch.randperm(40, device="cuda")
    expected_k, expected_v = k.clone(), v.clone()
    with backend.force("reference"):
        copy_pages(expected_k, expected_v, order[:13], order[13:26])
    copy_pages(k, v, order[:13], order[13:26])
    assert torch.equal(k, expected_k)
    assert torch.equal(v, expected_v)


@pytest.mark.parametrize("page_size", [16, 32, 256])
@pytest.mark.parametrize(("rows", "width"), [(1, 4), (7, 300), (64, 4096), (512, 64)])
def test_decode_inputs_equal_the_reference(page_size: int, rows: int, width: int) -> None:
    positions = torch.randint(0, width * page_size, (rows + 1,), device="cuda")
    positions[-1] = -1
    tables = torch.randint(0, 1 << 20, (rows + 1, width), dtype=torch.int32, device="cuda")
    slots = torch.randperm(rows + 1, device="cuda")

    def made() -> tuple[Tensor, ...]:
        state = DecodeState(torch.arange(rows + 1, device="cuda"), positions.clone(), tables)
        ids, at, places = torch.zeros(3, rows + 1, dtype=torch.int64, device="cuda")
        lengths, gathered = torch.zeros_like(ids, dtype=torch.int32), torch.zeros_like(tables)
        inputs = DecodeInputs(ids, at, places, lengths, gathered)
        prepare_decodes(slots, state, page_size, inputs)
        used = torch.arange(width, device="cuda") * page_size < lengths.unsqueeze(1)
        return ids, at, places, lengths, gathered * used, state.positions

    for found, expected in zip(made(), reference(made), strict=True):
        assert torch.equal(found, expected)


# ---- CUDA graphs ----


def test_a_layer_of_experts_can_be_captured_and_replayed_with_other_tokens() -> None:
    x, w13, w2 = randn(16, 256), randn(8, 256, 256, scale=0.06), randn(8, 256, 128, scale=0.09)
    gate = randn(256, 8)

    def layer() -> Tensor:
        weights, ids = route_softmax(x @ gate, 2, True)
        return fused_moe(rms_norm(x, x[0], 1e-6), w13, w2, weights, ids)

    layer()  # autotuning and building happen before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer()
    x.copy_(randn(16, 256))
    graph.replay()
    assert torch.equal(out, layer())
