"""Defaults that SGLang derives from GPU, width and chunk, by hand from its source."""

from __future__ import annotations

import pytest

from blis_py.hardware.capacity import KvCapacity, kv_capacity
from blis_py.hardware.gpu import GIB, load_gpu
from blis_py.hardware.memory_overheads import SGLANG_OVERHEADS
from blis_py.hardware.sglang_defaults import (
    Encoder,
    chunk_graphs_mib,
    chunk_tokens,
    earlier_chunk_tokens,
    earlier_memory_share,
    largest_graph,
    later_chunk_tokens,
    later_largest_graph,
    memory_share,
    running_requests,
)
from blis_py.models.model_shape import load_model


@pytest.mark.parametrize(
    ("gpu", "gpus", "chunk", "share"),
    [
        ("h100", 1, 8192, 0.835),  # 512 + 12288 + 512 + 128 = 13440 of 81559 MiB
        ("h100", 4, 8192, 0.824),  # 512 + 12288 + 1024 + 512 = 14336
        ("h100", 8, 8192, 0.818),
        ("h100", 1, 16384, 0.685),  # 512 + 24576 + 512 + 128 = 25728
        ("h100", 1, 2048, 0.874),  # 4224, and at least 10240
        ("h200", 1, 8192, 0.907),  # 13440 of 143771 MiB
        ("h200", 8, 8192, 0.897),
        ("b200", 1, 16384, 0.857),  # 512 + 24576 + 1024 + 128 = 26240 of 183359 MiB
        ("b200", 8, 16384, 0.852),
        ("rtx-4090", 1, 2048, 0.847),  # 512 + 3072 + 48 + 128 = 3760 of 24564 MiB
        ("rtx-4090", 4, 2048, 0.827),  # 512 + 3072 + 160 + 512 = 4256
        ("l40s", 1, 4096, 0.851),  # 512 + 6144 + 64 + 128 = 6848 of 46068 MiB
        ("l40s", 4, 4096, 0.837),  # 512 + 6144 + 320 + 512 = 7488
    ],
)
def test_the_share_leaves_room_for_a_chunk_and_graphs(gpu: str, gpus: int, chunk: int, share: float) -> None:
    spec = load_gpu(gpu)
    assert memory_share(spec, gpus, chunk=chunk, graphs=largest_graph(spec, gpus)) == share


@pytest.mark.parametrize(
    ("gpu", "chunk", "below_four", "from_four"),
    [("l4", 4096, 48, 160), ("rtx-4090", 4096, 48, 160), ("l40s", 4096, 32, 160), ("h100", 8192, 256, 512)],
)
def test_from_0_5_20_on_small_gpus_have_larger_chunks_and_graphs(
    gpu: str, chunk: int, below_four: int, from_four: int
) -> None:
    spec = load_gpu(gpu)
    assert later_chunk_tokens(spec) == chunk
    assert [later_largest_graph(spec, gpus) for gpus in (1, 4)] == [below_four, from_four]


@pytest.mark.parametrize(
    ("gpu", "chunk", "below_four", "from_four"),
    [
        ("l4", 2048, 24, 80),
        ("rtx-4090", 2048, 24, 80),
        ("rtx-5090", 2048, 24, 80),
        ("a100-40", 4096, 32, 160),
        ("l40s", 4096, 32, 160),
        ("h100", 8192, 256, 512),
        ("rtx-pro-6000", 8192, 256, 512),
        ("h200", 8192, 256, 512),
        ("b200", 16384, 512, 512),
        ("gb300", 16384, 512, 512),
    ],
)
def test_chunk_and_graphs_follow_the_memory(gpu: str, chunk: int, below_four: int, from_four: int) -> None:
    spec = load_gpu(gpu)
    assert chunk_tokens(spec) == chunk
    assert [largest_graph(spec, gpus) for gpus in (1, 3, 4, 8)] == [*[below_four] * 2, *[from_four] * 2]


@pytest.mark.parametrize(
    ("gpu", "gpus", "replicas", "share"),
    [
        ("h100", 1, 1, 0.874),  # 10 of 79.65 GiB
        ("h100", 4, 1, 0.856),  # 11.5
        ("h200", 8, 1, 0.886),  # 16 of 140.4
        ("b200", 8, 8, 0.799),  # 36 of 179.06
        ("rtx-4090", 1, 1, 0.879),  # 2.9 of 23.99
    ],
)
def test_before_0_5_3_gpu_and_width_alone_decided(gpu: str, gpus: int, replicas: int, share: float) -> None:
    assert earlier_memory_share(load_gpu(gpu), gpus, replicas) == share
    assert earlier_chunk_tokens(load_gpu("l40s")) == 8192


def test_attention_dp_takes_memory_for_every_replica() -> None:
    few = memory_share(load_gpu("h100"), 2, replicas=2, chunk=8192, graphs=256)
    many = memory_share(load_gpu("b200"), 8, replicas=8, chunk=16384, graphs=512)
    assert (few, many) == (0.815, 0.751)  # 13568 + 3*256*2 of 81559, 27136 + 4.5*512*8 of 183359 MiB


def test_graphs_of_chunks_take_memory_by_their_number_or_as_one_for_latent_attention() -> None:
    assert chunk_graphs_mib(8192, latent=False) == 58 * 8
    assert chunk_graphs_mib(2048, latent=False) == (8 + 14 + 8 + 8 + 4) * 8
    assert chunk_graphs_mib(8192, latent=True) == 1536


@pytest.mark.parametrize(
    ("layers", "hidden", "factor"),
    [(24, 1024, 0.95), (24, 1152, 0.924765625), (27, 1152, 0.909736), (63, 4096, 0.76), (12, 512, 0.9975)],
)
def test_an_encoder_of_images_takes_a_tenth_for_its_size(layers: int, hidden: int, factor: float) -> None:
    share = memory_share(load_gpu("h100"), 1, chunk=8192, graphs=256, encoder=Encoder(layers, hidden))
    assert share == pytest.approx(0.835 * factor, rel=1e-6)


@pytest.mark.parametrize(
    ("tokens", "longest", "requests"),
    [(400_000, 131_072, 2048), (600_000, 131_072, 2343), (5_000_000, 131_072, 4096), (1000, 40_960, 500)],
)
def test_requests_are_512_for_each_longest_sequence_within_bounds(
    tokens: int, longest: int, requests: int
) -> None:
    assert running_requests(tokens, longest) == requests


def pool(model: str, gpu: str, tp: int, share: float, **settings: int) -> KvCapacity:
    return kv_capacity(
        load_model(model),
        load_gpu(gpu),
        tp,
        gpu_memory_utilization=share,
        overheads=SGLANG_OVERHEADS,
        **settings,
    )


def test_the_share_is_of_the_memory_that_is_free_before_loading() -> None:
    """A public log has 367,404 tokens (vLLM's issue 21348)."""
    found = pool("qwen3-235b-a22b-fp8", "h100", 4, 0.93)
    assert found.memory_bytes == load_gpu("h100").visible_memory_bytes - 2 * GIB
    assert found.tokens == pytest.approx(367_404, rel=0.03)
    assert "0.93 of the 77.19 free before loading" in found.describe()


def test_windowed_layers_have_a_pool_of_four_fifths_of_the_tokens() -> None:
    shape = load_model("gpt-oss-120b")
    layer_bytes = 2 * shape.kv_heads * shape.head_dim * 2
    found = pool("gpt-oss-120b", "h100", 1, 0.835)
    assert found.block_bytes == 16 * int((18 + 0.8 * 18) * layer_bytes)


def test_states_have_nine_nineteenths_of_the_pool_or_as_many_as_given() -> None:
    shape = load_model("qwen3.5-35b-a3b")
    assert shape.linear is not None
    found = pool("qwen3.5-35b-a3b", "h200", 1, 0.8)
    room_bytes = found.kv_bytes + found.overhead_bytes
    assert found.sequences == int(room_bytes * 0.9 / 1.9) // shape.linear.sequence_bytes
    given = pool("qwen3.5-35b-a3b", "h200", 1, 0.8, states=100)
    assert given.sequences == 100
    assert given.kv_bytes == room_bytes - 100 * shape.linear.sequence_bytes
