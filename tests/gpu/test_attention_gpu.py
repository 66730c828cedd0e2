"""The attention kernels on a CUDA device, in bf16, against float64; run by `make gpu`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.kernels import backend
from engine.kernels.fp8 import as_fp8

sys.path.insert(0, str(Path(__file__).parents[1] / "engine" / "kernels"))
from attention_cases import Batch, make_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MANY = [(1, 1 + 37 * index % 900) for index in range(64)]
SHAPES: dict[str, tuple[list[tuple[int, int]], dict[str, Any]]] = {
    "decode, one long sequence": ([(1, 20_000)], {}),
    "decode, many lengths": (MANY, {}),
    "decode, one long among short": ([(1, 30), (1, 16_000), *MANY], {"heads": 64}),
    "decode, no grouping, d64": (MANY, {"heads": 8, "head_dim": 64}),
    "decode, groups of 3, d96": (MANY, {"heads": 24, "head_dim": 96, "page_size": 32}),
    "decode, d256, large pages": (MANY, {"heads": 32, "head_dim": 256, "page_size": 256}),
    "decode, d80": (MANY, {"heads": 32, "kv_heads": 32, "head_dim": 80}),
    "decode, groups of 5": (MANY, {"heads": 40, "kv_heads": 8}),
    "decode, groups of 7": (MANY, {"heads": 28, "kv_heads": 4}),
    "decode, groups of 7, d80": (MANY, {"heads": 14, "kv_heads": 2, "head_dim": 80, "page_size": 64}),
    "prompt": ([(2048, 2048)], {}),
    "prompt, groups of 5, d80": ([(700, 900), (3, 3)], {"heads": 20, "kv_heads": 4, "head_dim": 80}),
    "prompt, groups of 7": ([(700, 900), (129, 129)], {"heads": 28, "kv_heads": 4}),
    "prompts of many lengths": ([(new, new) for new in (700, 3, 129, 64, 1000)], {"page_size": 64}),
    "chunks over cached prefixes": ([(512, 4096), (100, 3000), (1, 2000)], {"num_decodes": 0}),
    "decodes, chunks and prompts": ([*MANY, (300, 300), (512, 2000), (2, 77)], {}),
    "diffusion blocks": (
        [(32, 64 + 32 * index) for index in range(40)],
        {"mask_block": 32, "num_decodes": 0},
    ),
    "window and sinks, groups of 8, d64": (
        [*MANY, (300, 300), (512, 2000), (2, 77)],
        {"heads": 64, "head_dim": 64, "page_size": 64, "window": 128, "sinks": True},
    ),
    "window, d256": (
        [*MANY, (700, 700), (100, 3000)],
        {"heads": 8, "kv_heads": 4, "head_dim": 256, "page_size": 64, "window": 512},
    ),
    "float8 cache": ([*MANY, (300, 300), (512, 2000), (2, 77)], {"page_size": 64, "float8": True}),
    "float8 cache, window, d256": (
        [*MANY, (700, 700), (100, 3000), (20, 40)],
        {"heads": 8, "kv_heads": 4, "head_dim": 256, "page_size": 64, "window": 512, "float8": True},
    ),
    "diffusion prompts with tails": ([(77, 77), (500, 1013), (32, 5000)], {"mask_block": 32, "head_dim": 64}),
}


def batch_of(lengths: list[tuple[int, int]], shape: dict[str, Any], seed: int = 0) -> Batch:
    settings = {
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "dtype": torch.bfloat16,
        "device": "cuda",
        **shape,
    }
    float8 = settings.pop("float8", False)
    batch = make_batch(lengths, seed=seed, **settings)
    if not float8:
        return batch
    return replace(batch, k_cache=as_fp8(batch.k_cache), v_cache=as_fp8(batch.v_cache))


def oracle(batch: Batch) -> torch.Tensor:
    """The torch reference in float64 over what is stored; the CPU checks it against the definition."""
    exact = replace(batch, q=batch.q.double(), k_cache=batch.k_cache.double(), v_cache=batch.v_cache.double())
    with backend.force("reference"):
        return exact.attend()


def attend_into_poison(batch: Batch) -> torch.Tensor:
    """Attend after filling the allocator's free memory with NaN, so that an unwritten output shows."""
    torch.full(batch.q.shape, torch.nan, dtype=batch.q.dtype, device="cuda")
    return batch.attend()


@pytest.mark.parametrize(("lengths", "shape"), SHAPES.values(), ids=SHAPES.keys())
def test_bf16_matches_float64(lengths: list[tuple[int, int]], shape: dict[str, Any]) -> None:
    """Everything that is no sequence's own token is NaN here: reading any of it would show."""
    batch = batch_of(lengths, shape)
    exact = oracle(batch)
    out = attend_into_poison(batch).double()
    assert torch.isfinite(out).all()
    assert (out - exact).norm() / exact.norm() < 1e-2
    torch.testing.assert_close(out, exact, atol=2e-2, rtol=2e-2)


FAR_ELEMENTS = 2**31


def far_away(batch: Batch) -> Batch:
    """The same batch with its pages behind the first 2**31 elements of K and of V; all others are NaN."""
    pages, *page = batch.k_cache.shape
    first = -(-FAR_ELEMENTS // batch.k_cache[0].numel())
    caches = []
    for near in (batch.k_cache, batch.v_cache):
        far = torch.full((first + pages, *page), torch.nan, dtype=near.dtype, device=near.device)
        far[first:] = near
        caches.append(far)
    tables = batch.meta.block_tables
    moved = torch.where(tables < pages, tables + first, tables)
    return replace(
        batch, k_cache=caches[0], v_cache=caches[1], meta=replace(batch.meta, block_tables=moved, plans={})
    )


@pytest.mark.parametrize("name", ["decode, many lengths", "prompt", "decodes, chunks and prompts"])
def test_pages_beyond_2_to_the_31_elements_are_read_like_any_other(name: str) -> None:
    """9 GB of KV cache: an offset in 32 bits would wrap."""
    batch = batch_of(*SHAPES[name])
    near = batch.attend()
    assert torch.equal(far_away(batch).attend(), near)


@pytest.mark.parametrize(
    "name", ["decode, one long among short", "decodes, chunks and prompts", "diffusion blocks"]
)
def test_repeats_are_bit_identical(name: str) -> None:
    """Nothing in the kernels adds up in an order that varies, so a difference would be a race."""
    batch = batch_of(*SHAPES[name])
    first = batch.attend()
    for _ in range(50):
        assert torch.equal(attend_into_poison(batch), first)


def test_padded_rows_are_zero() -> None:
    out = attend_into_poison(batch_of([(1, 0), (1, 500), (1, 0)], {}))
    assert (out[[0, 2]] == 0).all()
    assert torch.isfinite(out).all()


def test_a_captured_graph_attends_what_is_copied_into_its_tensors() -> None:
    """Captured for 64 rows of up to 4096 tokens, replayed for batches of other lengths and with padding."""
    batch = batch_of([(1, 4096)] * 64, {})
    meta = batch.meta
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        batch.attend()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = batch.attend()
    for lengths in ([*(4096 - 64 * index for index in range(64))], [1] * 64, [0] * 60 + [4096, 7, 0, 1234]):
        meta.seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        out.fill_(torch.nan)
        graph.replay()
        exact = oracle(replace(batch, meta=replace(meta, plans={})))
        torch.testing.assert_close(out.double(), exact, atol=2e-2, rtol=2e-2)
