"""QK-norm, rotary embedding and paged KV store: the reference against float64, Triton against it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from engine.kernels import QkNorm, backend, qk_norm_rope_store

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="tests/gpu runs these kernels on the device"
)
Tensor = torch.Tensor
UNTOUCHED = 7.0


@dataclass(frozen=True)
class Case:
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    page_size: int
    norm: bool
    tokens: int = 6


CASES = [
    Case(4, 2, 32, 32, 16, norm=True),
    Case(4, 2, 32, 16, 16, norm=True),
    Case(6, 1, 24, 24, 32, norm=False),
    Case(2, 2, 64, 32, 16, norm=False),
]


@dataclass(frozen=True)
class Inputs:
    case: Case
    qkv: Tensor
    cos_sin: Tensor
    positions: Tensor
    slots: Tensor
    norm: QkNorm | None

    def run(self) -> tuple[Tensor, Tensor, Tensor]:
        case = self.case
        cache = torch.full((2, 5, case.kv_heads, case.page_size, case.head_dim), UNTOUCHED)
        q = qk_norm_rope_store(
            self.qkv,
            self.cos_sin,
            self.positions,
            self.slots,
            cache[0],
            cache[1],
            self.norm,
        )
        return q, cache[0], cache[1]


def inputs(case: Case, seed: int = 0) -> Inputs:
    torch.manual_seed(seed)
    angles = torch.rand(40, case.rotary_dim // 2) * 6
    slots = torch.randperm(5 * case.page_size)[: case.tokens]
    slots[1] = -1
    return Inputs(
        case,
        qkv=torch.randn(case.tokens, (case.heads + 2 * case.kv_heads) * case.head_dim),
        cos_sin=torch.cat([angles.cos(), angles.sin()], dim=1),
        positions=torch.randint(0, 40, (case.tokens,)),
        slots=slots,
        norm=QkNorm(*torch.rand(2, case.head_dim) + 0.5, 1e-6) if case.norm else None,
    )


def naive_head(head: Tensor, weight: Tensor | None, cos_sin: Tensor, rotary_dim: int) -> Tensor:
    x = head.double()
    if weight is not None:
        x = x / (x.pow(2).mean() + 1e-6).sqrt() * weight.double()
    half = rotary_dim // 2
    result = x.clone()
    for i in range(half):
        cos, sin = cos_sin[i].double(), cos_sin[half + i].double()
        result[i] = x[i] * cos - x[i + half] * sin
        result[i + half] = x[i + half] * cos + x[i] * sin
    return result


@pytest.mark.parametrize("case", CASES)
def test_every_head_is_normalised_rotated_and_stored_at_its_slot(case: Case) -> None:
    given = inputs(case)
    q, k_cache, v_cache = given.run()
    heads = given.qkv.view(case.tokens, -1, case.head_dim)
    q_weight, k_weight = given.norm[:2] if given.norm else (None, None)
    for token in range(case.tokens):
        cos_sin = given.cos_sin[given.positions[token]]
        for head in range(case.heads):
            expected = naive_head(heads[token, head], q_weight, cos_sin, case.rotary_dim)
            torch.testing.assert_close(q[token, head].double(), expected, rtol=1e-4, atol=1e-5)
        slot = int(given.slots[token])
        if slot < 0:
            continue
        page, offset = divmod(slot, case.page_size)
        for head in range(case.kv_heads):
            k = naive_head(heads[token, case.heads + head], k_weight, cos_sin, case.rotary_dim)
            torch.testing.assert_close(k_cache[page, head, offset].double(), k, rtol=1e-4, atol=1e-5)
            assert torch.equal(v_cache[page, head, offset], heads[token, case.heads + case.kv_heads + head])


@interpreted
@pytest.mark.parametrize("name", ["reference", "triton"])
def test_slot_minus_one_stores_nothing_and_other_slots_stay_as_they_were(name: backend.Backend) -> None:
    given = inputs(CASES[0])
    with backend.force(name):
        _, k_cache, v_cache = given.run()
    for cache in (k_cache, v_cache):
        written = (cache != UNTOUCHED).any(dim=-1).any(dim=1).sum()
        assert written == (given.slots >= 0).sum() == given.case.tokens - 1


@interpreted
@pytest.mark.parametrize("case", CASES)
def test_the_triton_kernel_agrees_with_the_reference(case: Case) -> None:
    given = inputs(case, seed=1)
    expected = given.run()
    with backend.force("triton"):
        found = given.run()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_projection_with_gaps_between_its_rows_is_refused() -> None:
    given = inputs(CASES[0])
    wide = torch.cat([given.qkv, given.qkv], dim=1)[:, : given.qkv.shape[1]]
    with pytest.raises(ValueError, match="must be contiguous"):
        replace(given, qkv=wide).run()
