"""Mixture of experts: references against plain definitions, Triton in the interpreter and CUDA on the CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cuda_on_cpu import cuda_on_cpu
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels import align_experts, backend, fused_moe, route_grouped_sigmoid, route_softmax

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="tests/gpu runs these kernels on the device"
)
Tensor = torch.Tensor


def ranked(scores: list[float]) -> list[int]:
    """Ids from the highest score down, the lower id first in a tie."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))


# ---- routing ----


@pytest.mark.parametrize("renormalize", [True, False])
def test_softmax_routing_takes_the_most_probable_experts(renormalize: bool) -> None:
    logits = torch.randn(20, 12)
    weights, ids = route_softmax(logits, 3, renormalize)
    assert (weights.dtype, ids.dtype) == (torch.float32, torch.int32)
    for token, row in enumerate(torch.softmax(logits.double(), dim=1)):
        assert ids[token].tolist() == ranked(row.tolist())[:3]
        expected = row[ids[token].long()]
        expected = expected / expected.sum() if renormalize else expected
        torch.testing.assert_close(weights[token].double(), expected, rtol=1e-5, atol=1e-7)


def naive_grouped(row: Tensor, bias: Tensor, top_k: int, groups: int, keep: int) -> list[int]:
    biased = (torch.sigmoid(row) + bias).tolist()
    size = len(biased) // groups
    members = [range(g * size, (g + 1) * size) for g in range(groups)]
    scores = [sum(sorted((biased[i] for i in group), reverse=True)[:2]) for group in members]
    eligible = {i for group in ranked(scores)[:keep] for i in members[group]}
    return [i for i in ranked(biased) if i in eligible][:top_k]


@pytest.mark.parametrize(
    ("experts", "groups", "keep", "top_k"), [(16, 4, 2, 4), (24, 3, 3, 5), (256, 8, 4, 8)]
)
@pytest.mark.parametrize("renormalize", [True, False])
def test_grouped_sigmoid_routing_stays_in_the_best_groups(
    experts: int, groups: int, keep: int, top_k: int, renormalize: bool
) -> None:
    logits, bias = torch.randn(12, experts), torch.randn(experts) * 0.2
    weights, ids = route_grouped_sigmoid(logits, bias, top_k, groups, keep, renormalize, 2.5)
    for token in range(len(logits)):
        assert ids[token].tolist() == naive_grouped(logits[token], bias, top_k, groups, keep)
        scores = torch.sigmoid(logits[token].double())[ids[token].long()]
        scores = scores / scores.sum() if renormalize else scores
        torch.testing.assert_close(weights[token].double(), scores * 2.5, rtol=1e-5, atol=1e-6)


def test_the_bias_selects_but_does_not_weigh() -> None:
    logits, bias = torch.zeros(1, 8), torch.zeros(8)
    bias[5] = 1.0
    weights, ids = route_grouped_sigmoid(logits, bias, 1, 1, 1, False, 1.0)
    assert ids.item() == 5
    assert weights.item() == 0.5


def test_the_lower_expert_wins_ties() -> None:
    tied = torch.tensor([[1.0, 2.0, 2.0, 2.0, 1.0, 2.0, 0.0, 0.0]])
    assert route_softmax(torch.tensor([[-0.0, 0.0]]), 1, True)[1].item() == 0
    assert route_softmax(tied, 3, True)[1].tolist() == [[1, 2, 3]]
    assert route_grouped_sigmoid(tied, torch.zeros(8), 3, 2, 1, True, 1.0)[1].tolist() == [[1, 2, 3]]
    with cuda_on_cpu():
        assert route_softmax(tied, 3, True)[1].tolist() == [[1, 2, 3]]
        assert route_grouped_sigmoid(tied, torch.zeros(8), 3, 2, 1, True, 1.0)[1].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("experts", "top_k"), [(8, 2), (33, 3), (60, 4), (128, 8), (200, 8), (512, 32), (600, 2)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_cuda_softmax_routing_agrees_with_the_reference(
    experts: int, top_k: int, dtype: torch.dtype
) -> None:
    logits = torch.randn(7, experts).to(dtype)
    for renormalize in (True, False):
        expected_weights, expected_ids = route_softmax(logits, top_k, renormalize)
        with cuda_on_cpu():
            weights, ids = route_softmax(logits, top_k, renormalize)
        assert torch.equal(ids, expected_ids)
        torch.testing.assert_close(weights, expected_weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("experts", "groups", "keep", "top_k"),
    [(16, 4, 4, 4), (40, 5, 2, 3), (64, 8, 3, 6), (128, 8, 1, 8), (256, 8, 4, 8), (512, 32, 2, 5)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_cuda_grouped_routing_agrees_with_the_reference(
    experts: int, groups: int, keep: int, top_k: int, dtype: torch.dtype
) -> None:
    logits, bias = torch.randn(7, experts).to(dtype), torch.randn(experts) * 0.3
    for renormalize in (True, False):
        expected_weights, expected_ids = route_grouped_sigmoid(
            logits, bias, top_k, groups, keep, renormalize, 2.5
        )
        with cuda_on_cpu():
            weights, ids = route_grouped_sigmoid(logits, bias, top_k, groups, keep, renormalize, 2.5)
        assert torch.equal(ids, expected_ids)
        torch.testing.assert_close(weights, expected_weights, rtol=1e-5, atol=1e-7)


def test_impossible_routing_is_refused() -> None:
    logits, bias = torch.randn(2, 8), torch.zeros(8)
    with pytest.raises(ValueError, match="top_k 9 of 8 experts"):
        route_softmax(logits, 9, True)
    with pytest.raises(ValueError, match="do not form 3 equal groups"):
        route_grouped_sigmoid(logits, bias, 2, 3, 1, True, 1.0)
    with pytest.raises(ValueError, match="do not hold 5 experts"):
        route_grouped_sigmoid(logits, bias, 5, 2, 1, True, 1.0)


# ---- alignment ----

some_ids = st.integers(1, 9).flatmap(
    lambda experts: st.tuples(
        st.just(experts),
        st.lists(st.lists(st.integers(0, experts - 1), min_size=2, max_size=2), max_size=12),
    )
)


@given(some_ids, st.sampled_from([1, 4, 16]))
def test_alignment_groups_rows_by_expert_and_pads_each_to_whole_tiles(
    given_ids: tuple[int, list[list[int]]], block_m: int
) -> None:
    experts, chosen = given_ids
    ids = torch.tensor(chosen, dtype=torch.int32).view(-1, 2)
    rows, tile_experts, padded = align_experts(ids, experts, block_m)
    flat = ids.flatten().tolist()
    expected_rows: list[int] = []
    expected_tiles: list[int] = []
    for expert in range(experts):
        mine = [row for row, owner in enumerate(flat) if owner == expert]
        tiles = -(-len(mine) // block_m)
        expected_rows += mine + [len(flat)] * (tiles * block_m - len(mine))
        expected_tiles += [expert] * tiles
    used = int(padded)
    assert used == len(expected_rows)
    assert rows[:used].tolist() == expected_rows
    assert (rows[used:] == len(flat)).all()
    assert tile_experts[: len(expected_tiles)].tolist() == expected_tiles
    assert (tile_experts[len(expected_tiles) :] == -1).all()


def test_the_lengths_of_an_alignment_depend_on_shapes_only() -> None:
    even, one = torch.arange(8, dtype=torch.int32).view(4, 2), torch.zeros(4, 2, dtype=torch.int32)
    assert [t.shape for t in align_experts(even, 8, 16)] == [t.shape for t in align_experts(one, 8, 16)]


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "block_m"),
    [(0, 2, 4, 16), (1, 2, 8, 16), (5, 1, 1, 64), (37, 8, 128, 16), (300, 4, 60, 32), (4, 2, 260, 16)],
)
def test_the_cuda_alignment_equals_the_reference(tokens: int, top_k: int, experts: int, block_m: int) -> None:
    ids = torch.rand(tokens, experts).argsort(dim=1)[:, :top_k].to(torch.int32)
    expected = align_experts(ids, experts, block_m)
    with cuda_on_cpu():
        found = align_experts(ids, experts, block_m)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


# ---- the experts ----


def layer(
    tokens: int, top_k: int, experts: int, d: int, f: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(tokens)
    w13, w2 = torch.randn(experts, 2 * f, d) * d**-0.5, torch.randn(experts, d, f) * f**-0.5
    weights, ids = route_softmax(torch.randn(tokens, experts), top_k, True)
    return torch.randn(tokens, d), w13, w2, weights, ids


def biased(given_layer: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """The same experts as those of gpt-oss: with biases, and a limit that some gates and ups exceed."""
    _, w13, w2, _, _ = given_layer
    return (*given_layer, torch.randn(w13.shape[:2]), torch.randn(w2.shape[:2]), 1.5)


def naive_biased(
    x: Tensor, w13: Tensor, w2: Tensor, weights: Tensor, ids: Tensor, b13: Tensor, b2: Tensor, limit: float
) -> Tensor:
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(x.shape[0]):
        for weight, expert in zip(weights[token].double(), ids[token].tolist(), strict=True):
            both = w13[expert].double() @ x[token].double() + b13[expert].double()
            gate, up = (part.tolist() for part in both.chunk(2))
            hidden = [
                (max(-limit, min(u, limit)) + 1) * min(g, limit) / (1 + math.exp(-1.702 * min(g, limit)))
                for g, u in zip(gate, up, strict=True)
            ]
            down = w2[expert].double() @ torch.tensor(hidden, dtype=torch.float64) + b2[expert].double()
            out[token] += weight * down
    return out


def naive_moe(x: Tensor, w13: Tensor, w2: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(x.shape[0]):
        for weight, expert in zip(weights[token].double(), ids[token].tolist(), strict=True):
            gate, up = (w13[expert].double() @ x[token].double()).chunk(2)
            out[token] += weight * (w2[expert].double() @ (gate * torch.sigmoid(gate) * up))
    return out


@pytest.mark.parametrize(("tokens", "top_k", "experts"), [(1, 1, 1), (1, 4, 8), (9, 2, 4), (40, 2, 3)])
def test_the_experts_are_those_of_float64(tokens: int, top_k: int, experts: int) -> None:
    given_layer = layer(tokens, top_k, experts, 32, 24)
    found = fused_moe(*given_layer)
    torch.testing.assert_close(found.double(), naive_moe(*given_layer), rtol=1e-4, atol=1e-5)


def test_clamped_experts_with_biases_are_those_of_float64() -> None:
    given_layer = biased(layer(9, 2, 4, 32, 24))
    found = fused_moe(*given_layer)
    torch.testing.assert_close(found.double(), naive_biased(*given_layer), rtol=1e-4, atol=1e-5)


@interpreted
@pytest.mark.parametrize(("tokens", "d", "f"), [(5, 72, 40), (40, 64, 96)])
def test_the_triton_kernels_clamp_and_add_biases(tokens: int, d: int, f: int) -> None:
    given_layer = biased(layer(tokens, 2, 4, d, f))
    expected = fused_moe(*given_layer)
    with backend.force("triton"):
        found = fused_moe(*given_layer)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_token_gets_the_same_from_its_experts_whatever_else_is_in_the_batch() -> None:
    x, w13, w2, weights, ids = layer(12, 2, 4, 32, 24)
    alone = fused_moe(x[3:4], w13, w2, weights[3:4], ids[3:4])
    torch.testing.assert_close(fused_moe(x, w13, w2, weights, ids)[3:4], alone, rtol=1e-5, atol=1e-6)


@interpreted
@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "d", "f"),
    [(1, 2, 8, 64, 64), (5, 2, 4, 72, 40), (40, 2, 3, 64, 96), (0, 2, 4, 64, 64)],
)
def test_the_triton_kernels_agree_with_the_reference(
    tokens: int, top_k: int, experts: int, d: int, f: int
) -> None:
    given_layer = layer(tokens, top_k, experts, d, f)
    expected = fused_moe(*given_layer)
    with backend.force("triton"):
        found = fused_moe(*given_layer)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=25)
@given(st.integers(1, 4096), st.integers(1, 256))
def test_a_tile_is_high_enough_for_an_even_load_up_to_the_highest(num_rows: int, experts: int) -> None:
    from engine.kernels.triton.moe import MAX_BLOCK_M, MIN_BLOCK_M, block_m

    height = block_m(num_rows, experts)
    assert MIN_BLOCK_M <= height <= MAX_BLOCK_M
    assert height == MAX_BLOCK_M or height >= num_rows // experts
