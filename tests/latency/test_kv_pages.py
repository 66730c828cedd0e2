"""Groups of a model's layers that share one pool of KV blocks."""

from __future__ import annotations

import pytest

from blis_py.config.loader import load_config
from blis_py.core.kv_groups import CHUNKED, FULL, WINDOW, KVGroup
from blis_py.hardware.capacity import kv_capacity
from blis_py.hardware.gpu import load_gpu
from blis_py.hardware.memory_overheads import VLLM_OVERHEADS
from blis_py.models.kv_pages import kv_pages
from blis_py.models.model_shape import load_model
from blis_py.setup.deployment import deployed


@pytest.mark.parametrize(
    ("model", "groups", "layers"),
    [
        ("gemma-3-27b", [KVGroup(WINDOW, 1024)] * 6 + [KVGroup(FULL)], 10),
        ("gemma-3-4b", [KVGroup(WINDOW, 1024)] * 6 + [KVGroup(FULL)], 5),
        ("gpt-oss-120b", [KVGroup(WINDOW, 128), KVGroup(FULL)], 18),
        ("llama-4-maverick", [KVGroup(CHUNKED, 8192)] * 3 + [KVGroup(FULL)], 12),
    ],
)
def test_layers_are_grouped_as_the_wheels_of_vllm_group_them(
    model: str, groups: list[KVGroup], layers: int
) -> None:
    for most_padding in (1.25, 1.5):
        pages = kv_pages(load_model(model), 1, most_padding)
        assert pages is not None
        assert list(pages.groups) == groups
        assert pages.layers == layers


@pytest.mark.parametrize("model", ["qwen3-14b", "qwen3-next-80b-a3b", "deepseek-v3", "gemma-4-31b"])
def test_layers_that_keep_all_tokens_and_kinds_that_are_not_grouped_are_one_group(model: str) -> None:
    assert kv_pages(load_model(model), 1, 1.5) is None


def test_kinds_of_about_as_many_layers_are_padded_to_one_group_each() -> None:
    from dataclasses import replace

    shape = replace(load_model("gpt-oss-20b"), layers=24, windowed_layers=14)  # 10 full ones
    tight, wide = kv_pages(shape, 1, 1.25), kv_pages(shape, 1, 1.5)
    assert tight is not None
    assert wide is not None
    assert (len(tight.groups), tight.layers) == (3, 10)
    assert (len(wide.groups), wide.layers) == (2, 14)


def test_a_pool_of_gemma_3_27b_has_as_many_blocks_as_a_server_reported() -> None:
    # Of 109.86 GiB a server made 89,994 blocks, and said 205,696 tokens: a block of each of 7 groups for 16.
    pages = kv_pages(load_model("gemma-3-27b"), 1, 1.25)
    assert pages is not None
    assert int(109.86 * (1 << 30)) // pages.block_bytes(16) == pytest.approx(89_994, rel=1e-4)
    assert 89_994 // len(pages.groups) * 16 == 205_696


def test_the_pool_is_counted_as_vllm_counts_it() -> None:
    shape, gpu = load_model("gpt-oss-120b"), load_gpu("h100")
    pages = kv_pages(shape, 2, 1.5)
    assert pages is not None
    found = kv_capacity(shape, gpu, 2, overheads=VLLM_OVERHEADS, pages=pages)
    assert found.tokens == found.blocks // 2 * 16
    assert (
        f"{found.blocks:,} blocks of 16, shared by 2 groups of layers, = {found.tokens:,}" in found.describe()
    )
    # Without groups every layer's block holds the same tokens.
    assert found.block_bytes * 2 == shape.kv_bytes_per_token // 2 * 16


@pytest.mark.parametrize(
    ("settings", "grouped"),
    [
        ({"engine": "vllm"}, True),
        ({"engine": "vllm-0.15"}, True),
        ({"engine": "vllm", "scheduler.prefix_cache": "none"}, True),
        ({"engine": "vllm", "scheduler.hybrid_kv_cache": False}, False),
        ({"engine": "sglang"}, False),
    ],
)
def test_groups_are_those_of_vllm_with_its_hybrid_kv_cache_manager(
    settings: dict[str, object], grouped: bool
) -> None:
    found = deployed(load_config(overrides={"model": "gpt-oss-20b", "gpu": "h100", **settings}))
    assert (found.pages is not None) is grouped
    handing = deployed(load_config(overrides={"model": "gpt-oss-20b", "gpu": "h100", **settings}), True)
    assert handing.pages is None
