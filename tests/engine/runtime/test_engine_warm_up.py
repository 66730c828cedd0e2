"""The batches of the warm-up: between them they make every choice that a batch of the engine can lead to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.kernels.gpu import HOPPER, Gpu
from engine.warm_up import Bounds, MadeUp, batches, choices

SMALL_GPU = Gpu(90, 8, HOPPER.shared_bytes)


def model(num_heads: int, num_kv_heads: int, head_dim: int, experts: int = 0) -> Any:
    router = SimpleNamespace(top_k=4) if experts else None
    sizes = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    return SimpleNamespace(**sizes, router=router, experts=experts)


MODELS = [model(32, 8, 128), model(8, 8, 64, experts=8), model(28, 4, 256, experts=64), model(8, 1, 32)]


@st.composite
def engines(draw: st.DrawFn) -> tuple[Any, Bounds, Gpu]:
    block = draw(st.sampled_from([1, 1, 4, 32]))
    seqs = draw(st.integers(1, 80))
    config = EngineConfig(
        model="",
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs * block if block > 1 else 1, 2048))
        if block < 32
        else 4096,
        long_prefill_token_threshold=draw(st.sampled_from([0, block * 5, 300])),
    )
    length = draw(st.integers(block, 9000))
    return (
        draw(st.sampled_from(MODELS)),
        Bounds.of(config, length, block),
        draw(st.sampled_from([HOPPER, SMALL_GPU])),
    )


@st.composite
def batches_within(draw: st.DrawFn, bounds: Bounds) -> MadeUp:
    """Any batch that a scheduler may form, or a part of one: the decodes, or the others."""
    block = bounds.block
    if block == 1 and draw(st.booleans()):
        return MadeUp(decodes=draw(st.integers(1, min(bounds.seqs, bounds.tokens))))
    left, chunks = bounds.tokens, list[tuple[int, int]]()
    for _ in range(draw(st.integers(1, bounds.seqs))):
        most = min(left, bounds.chunk) // block
        if most < 1:
            break
        new = block * draw(st.integers(1, draw(st.sampled_from([1, min(2, most), most]))))
        cached = block * draw(st.integers(0, (bounds.length - new) // block))
        chunks.append((cached, new))
        left -= new
    return MadeUp(chunks=tuple(chunks))


@settings(max_examples=50)
@given(data=st.data())
def test_no_batch_leads_to_a_choice_that_the_warm_up_has_not_made(data: st.DataObject) -> None:
    sizes, bounds, gpu = data.draw(engines())
    made = set().union(*(choices(sizes, batch, gpu) for batch in batches(sizes, bounds, gpu)))
    for _ in range(5):
        batch = data.draw(batches_within(bounds))
        assert choices(sizes, batch, gpu) <= made, batch


def test_no_batch_of_the_warm_up_is_larger_than_those_of_the_engine() -> None:
    bounds = Bounds(seqs=3, tokens=100, chunk=40, length=60)
    found = batches(MODELS[1], bounds, HOPPER)
    assert found
    for batch in found:
        assert 1 <= batch.tokens <= 100
        assert batch.decodes + len(batch.chunks) <= 3
        assert all(0 <= cached <= 60 - new and 1 <= new <= 40 for cached, new in batch.chunks)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Bounds(256, 2048, 2048, 4096)),
        ({"long_prefill_token_threshold": 512}, Bounds(256, 2048, 512, 4096)),
        ({"max_num_batched_tokens": 8192, "max_num_seqs": 9}, Bounds(9, 8192, 4096, 4096)),
    ],
    ids=str,
)
def test_bounds_are_those_of_the_scheduler(given: dict[str, int], expected: Bounds) -> None:
    assert Bounds.of(EngineConfig(model="", **given), 4096) == expected  # type: ignore[arg-type]


def test_bounds_of_block_diffusion_are_whole_blocks() -> None:
    config = EngineConfig(
        model="", max_num_seqs=4, max_num_batched_tokens=200, long_prefill_token_threshold=70
    )
    assert Bounds.of(config, 1000, 32) == Bounds(4, 192, 64, 992, 32)
