"""Groups of a model's layers that share one pool of KV blocks."""

from __future__ import annotations

import pytest

from blis_py.config.loader import load_config
from blis_py.core.kv_groups import ALIGNED, CHUNKED, FULL, STATE, WINDOW, KVGroup, longest_that_fits
from blis_py.hardware.capacity import kv_capacity
from blis_py.hardware.gpu import load_gpu
from blis_py.hardware.memory_overheads import VLLM_OVERHEADS
from blis_py.models.kv_pages import StateRules, kv_pages
from blis_py.models.layer_groups import layer_groups
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


@pytest.mark.parametrize("model", ["qwen3-14b", "qwen3-next-80b-a3b", "deepseek-v3"])
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


@pytest.mark.parametrize(
    ("model", "tp", "block_size", "states", "layers"),
    [
        ("qwen3-next-80b-a3b", 2, 544, 3, 12),
        ("qwen3.5-35b-a3b", 1, 1056, 3, 10),
        ("kimi-linear-48b-a3b", 2, 1024, 3, 7),
    ],
)
def test_a_block_of_attention_is_as_large_as_a_state(
    model: str, tp: int, block_size: int, states: int, layers: int
) -> None:
    # Servers of Qwen3-Next on two GPUs and of Qwen3.5-35B on one said 544 and 1,056 tokens.
    pages = kv_pages(load_model(model), tp, 1.5, StateRules())
    assert pages is not None
    assert pages.groups == (KVGroup(STATE),) * states + (KVGroup(FULL),)
    assert (pages.block_size, pages.layers) == (block_size, layers)
    linear = load_model(model).linear
    assert linear is not None
    attention_bytes = pages.token_bytes * block_size
    assert attention_bytes >= linear.layer_bytes(tp) > attention_bytes * (block_size - 128) / block_size


def test_blocks_that_users_set_are_multiplied_to_hold_a_state() -> None:
    pages = kv_pages(load_model("qwen3-next-80b-a3b"), 2, 1.5, StateRules(block_size=64, multiple=64))
    assert pages is not None
    assert pages.block_size == 576


def test_keys_of_a_group_of_heads_are_on_every_rank_that_has_some_of_them() -> None:
    linear = load_model("nemotron-3-nano-30b-a3b").linear
    assert linear is not None
    assert linear.key_heads == 8
    assert linear.layer_bytes(8) == linear.layer_bytes(1) // 8
    assert linear.layer_bytes(16) > linear.layer_bytes(1) // 16


def test_a_pool_with_states_is_as_large_as_a_server_reported() -> None:
    # vLLM 0.10.2 on two H200: 44.59 GiB, 973,760 tokens in blocks of 544, 14.77 times 262,144 tokens.
    settings = {"engine": "vllm-0.10.2", "model": "qwen3-next-80b-a3b", "gpu": "h200", "tp": 2}
    served = deployed(load_config(overrides=settings))
    assert served.pages is not None
    pages = served.pages
    blocks = int(44.59 * (1 << 30)) // pages.block_bytes(544)
    assert blocks // len(pages.groups) * 544 == 973_760
    assert blocks / (-(-262_144 // 544) + 3) == pytest.approx(14.77, abs=0.005)
    assert served.num_kv_blocks == pytest.approx(blocks, rel=0.08)
    assert served.config.scheduler.block_size == 544
    assert not served.config.scheduler.enable_prefix_caching
    assert served.sequences is None


@pytest.mark.parametrize(
    ("engine", "caches"), [("vllm-0.10", False), ("vllm-0.25", False), ("vllm-0.26", True), ("vllm", True)]
)
def test_models_with_states_have_a_prefix_cache_from_0_26_on(engine: str, caches: bool) -> None:
    for model, cached in (("qwen3-next-80b-a3b", caches), ("qwen3-14b", True)):
        found = load_config(overrides={"engine": engine, "model": model, "gpu": "h200", "tp": 2})
        assert found.scheduler.enable_prefix_caching is cached


def test_a_block_size_that_is_raised_is_said() -> None:
    settings = {"engine": "vllm-0.19", "model": "qwen3-next-80b-a3b", "gpu": "h200", "tp": 2}
    served = deployed(load_config(overrides={**settings, "scheduler.block_size": 32}))
    assert served.block_notes() == [
        "block_size is 544 tokens: of attention as large as a state, as vLLM raises it"
    ]
    assert not deployed(load_config(overrides=settings)).block_notes()


@pytest.mark.parametrize(
    ("model", "engine", "gpu", "state", "block_size"),
    [
        ("qwen3-next-80b-a3b", "vllm-0.32", "h200", KVGroup(ALIGNED), 544),
        ("qwen3-next-80b-a3b", "vllm", "h200", KVGroup(ALIGNED, 1), 576),
        ("qwen3-next-80b-a3b", "vllm", "mi300x", KVGroup(ALIGNED), 544),
        ("nemotron-3-nano-30b-a3b", "vllm-0.31", "h200", KVGroup(ALIGNED), 2096),
        ("nemotron-3-nano-30b-a3b", "vllm-0.32", "h200", KVGroup(ALIGNED, 1), 2096),
        ("kimi-linear-48b-a3b", "vllm-0.26", "h200", KVGroup(ALIGNED), 960),
        ("kimi-linear-48b-a3b", "vllm", "h200", KVGroup(ALIGNED), 1024),
    ],
)
def test_the_prefix_cache_keeps_states_as_release_and_kernels_do(
    model: str, engine: str, gpu: str, state: KVGroup, block_size: int
) -> None:
    served = deployed(load_config(overrides={"engine": engine, "model": model, "gpu": gpu, "tp": 2}))
    assert served.pages is not None
    assert set(served.pages.groups) == {state, KVGroup(FULL)}
    assert served.config.scheduler.block_size == block_size


def test_states_of_a_prefix_cache_before_0_26_are_one_group() -> None:
    settings = {"engine": "vllm-0.24", "model": "qwen3-next-80b-a3b", "gpu": "h200", "tp": 2}
    served = deployed(load_config(overrides={**settings, "scheduler.enable_prefix_caching": True}))
    assert served.pages is None
    assert "prefix cache" in served.block_notes()[0]


def test_blocks_of_a_server_of_qwen3_5_are_those_that_it_reported() -> None:
    # vLLM 0.18 made of 55.72 GiB on one GPU 729,696 tokens in blocks of 1,056: 10.85 times 262,144,
    # with two blocks for each group of states.
    pages = kv_pages(load_model("qwen3.5-35b-a3b"), 1, 1.5, StateRules())
    assert pages is not None
    blocks = int(55.72 * (1 << 30)) // pages.block_bytes(pages.block_size)
    assert pages.block_size == 1056
    assert blocks // len(pages.groups) * 1056 == 729_696
    assert blocks / (-(-262_144 // 1056) + 3 * 2) == pytest.approx(10.85, abs=0.005)


def test_pools_that_hand_over_say_that_they_count_one_group() -> None:
    config = load_config(overrides={"engine": "vllm", "model": "gpt-oss-20b", "gpu": "h100"})
    assert "among 2 groups of layers" in deployed(config, hands_over=True).block_notes()[0]
    assert deployed(config).block_notes() == []
    plain = load_config(overrides={"engine": "vllm", "model": "qwen3-14b", "gpu": "h100"})
    assert deployed(plain, hands_over=True).block_notes() == []


@pytest.mark.parametrize(
    ("model", "tp", "window", "full"),
    [("gemma-4-31b", 1, 1, 2), ("gemma-4-31b", 4, 1, 2), ("gemma-4-26b-a4b", 8, 2, 1)],
)
def test_layers_that_keep_less_of_a_token_have_blocks_of_more_tokens(
    model: str, tp: int, window: int, full: int
) -> None:
    """Gemma 4: 16 and 8 heads of 256, and 4 and 2 of 512 in the full layers."""
    pages = kv_pages(load_model(model), tp, 1.5)
    assert pages is not None
    assert pages.groups == (KVGroup(WINDOW, 1024, window),) * 5 + (KVGroup(FULL, 0, full),)
    shape = load_model(model)
    assert pages.layers == shape.cached_layers // 6
    widest = max(group.token_bytes for group in layer_groups(shape, tp))
    assert pages.token_bytes == widest
    assert kv_pages(shape, tp, 1.5, spans=False) is None


def test_the_longest_sequence_has_blocks_of_two_sizes() -> None:
    # Of 12 blocks a window of 8 tokens with 8 in flight takes 5, and 7 hold 8 tokens of the full layers each.
    groups = (KVGroup(WINDOW, 8), KVGroup(FULL, 0, 2))
    assert longest_that_fits(groups, 12, 4, 8) == 56
    assert longest_that_fits((KVGroup(FULL, 0, 2),), 12, 4, 8) == 96


@pytest.mark.parametrize(("engine", "grouped"), [("vllm-0.23", False), ("vllm-0.24", True), ("vllm", True)])
def test_gemma_4_is_grouped_from_the_release_that_was_compared(engine: str, grouped: bool) -> None:
    served = deployed(
        load_config(overrides={"engine": engine, "model": "gemma-4-31b", "gpu": "h100", "tp": 4})
    )
    assert (served.pages is not None) is grouped
