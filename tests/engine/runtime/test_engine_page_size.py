"""Tokens of a page: by device unless given, and everything that is counted in pages follows."""

from __future__ import annotations

import pytest
import torch
from stub_engine import StubSizes, stub_engine

from blis_py.core.config import SchedulerConfig
from blis_py.core.token_keys import token_keys
from engine.config import EngineConfig
from engine.kv_pool import capacity
from engine.sampling_params import SamplingParams

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def test_a_page_has_64_tokens_on_a_gpu_and_16_on_the_cpu() -> None:
    config = EngineConfig(model="any")
    assert (config.on("cuda").block_size, config.on("cpu").block_size) == (64, 16)
    assert EngineConfig(model="any", block_size=32).on("cuda").block_size == 32
    assert SchedulerConfig(num_kv_blocks=1, max_model_len=1).block_size == 16, (
        "the simulated engines keep theirs"
    )


@pytest.mark.parametrize(("block", "on_gpu", "on_cpu"), [(32, 64, 32), (64, 64, 64), (128, 128, 128)])
def test_pages_hold_whole_diffusion_blocks(block: int, on_gpu: int, on_cpu: int) -> None:
    config = EngineConfig(model="any")
    assert config.on("cuda", block).block_size == on_gpu
    assert config.on("cpu", block).block_size == on_cpu


def test_the_cache_holds_as_many_tokens_whatever_the_page() -> None:
    config = EngineConfig(model="any", kv_cache_memory_bytes=1 << 20, max_model_len=64)
    rooms = [
        capacity(config.on(kind), StubSizes(), torch.float32, CPU, lambda: None).num_blocks * size
        for kind, size in (("cuda", 64), ("cpu", 16))
    ]
    assert rooms[0] == rooms[1]


def test_prefixes_are_shared_in_whole_pages_and_outputs_are_the_same() -> None:
    prompt, outputs, cached = [5] * 150, [], []
    for size in (16, 64):
        engine = stub_engine(block_size=size, max_model_len=512, num_kv_blocks=1024 // size)
        for _ in range(2):
            sequence = engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=20))
            while engine.has_unfinished:
                engine.step()
        outputs.append(list(sequence.output_ids))
        cached.append(sequence.request.cached_tokens)
        assert len(token_keys(prompt, size)) == 150 // size
    assert outputs[0] == outputs[1]
    assert cached == [144, 128]


def test_a_page_of_another_size_is_refused() -> None:
    with pytest.raises(Exception, match="not a page size"):
        EngineConfig(model="any", block_size=48)
