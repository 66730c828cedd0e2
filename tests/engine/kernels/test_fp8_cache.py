"""A KV cache in float8: what is stored, and attention over it, by reference and by Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attention_cases import make_batch, naive

from engine.kernels import backend
from engine.kernels.fp8 import FP8, as_fp8
from engine.kernels.qkv import qk_norm_rope_store

LENGTHS = [(1, 30), (1, 150), (20, 40), (3, 3)]


def test_numbers_beyond_its_range_are_its_largest() -> None:
    stored = as_fp8(torch.tensor([1e4, -1e4, 448.0, 0.3, 0.0])).float().tolist()
    assert stored == [448.0, -448.0, 448.0, 0.3125, 0.0]


@pytest.mark.parametrize("name", ["reference", "triton"])
def test_keys_and_values_are_stored_rounded(name: backend.Backend) -> None:
    """Triton's interpreter gets it wrong where rounding carries into the exponent: it gets what need not be
    rounded, some of it beyond the range."""
    torch.manual_seed(0)
    qkv, cos_sin = 300 * torch.randn(5, 4 * 16), torch.cat((torch.ones(8, 8), torch.zeros(8, 8)), 1)
    if name == "triton":
        qkv = torch.where(qkv.abs() > 500, qkv, as_fp8(qkv).float())
    positions, slots = torch.arange(5), torch.tensor([3, 17, -1, 0, 31])
    caches = [torch.zeros(2, 1, 16, 16, dtype=FP8) for _ in range(2)]
    with backend.force(name):
        q = qk_norm_rope_store(qkv, cos_sin, positions, slots, *caches, None)
    torch.testing.assert_close(q.view(5, -1), qkv[:, :32])
    for cache, first in zip(caches, (32, 48), strict=True):
        rows = cache.view(torch.uint8).view(-1, 16).view(FP8).float()
        for token, slot in ((0, 3), (1, 17), (3, 0), (4, 31)):
            assert rows[slot].tolist() == as_fp8(qkv[token, first : first + 16]).float().tolist()
        assert not rows[1].any()


@pytest.mark.parametrize(
    ("name", "head_dim"), [("reference", 64), ("reference", 256), ("triton", 64), ("triton", 256)]
)
def test_attention_is_that_over_the_stored_values(name: backend.Backend, head_dim: int) -> None:
    lengths = LENGTHS if head_dim == 64 else [(1, 30), (70, 100), (20, 40)]
    batch = make_batch(lengths, head_dim=head_dim, page_size=64)
    caches = {part: as_fp8(getattr(batch, part).nan_to_num(nan=7.0)) for part in ("k_cache", "v_cache")}
    exact = replace(batch, **{part: cache.float() for part, cache in caches.items()})
    with backend.force(name):
        out = replace(batch, **caches).attend()
    torch.testing.assert_close(out.double(), naive(exact), atol=3e-6, rtol=1e-5)
