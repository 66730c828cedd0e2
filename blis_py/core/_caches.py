"""Prefix caches by name."""

from __future__ import annotations

from collections.abc import Callable

from blis_py.core.config import SchedulerConfig
from blis_py.core.grouped_kv import GroupedKV
from blis_py.core.hash_kv import HashKV
from blis_py.core.kv import KVCache
from blis_py.core.kv_groups import admitted_tokens, flight_tokens, longest_that_fits
from blis_py.core.leaf_kv import LeafKV
from blis_py.core.radix_kv import RadixKV

PREFIX_CACHES: dict[str, Callable[[SchedulerConfig], KVCache]] = {
    "hash": lambda config: HashKV(
        config.num_kv_blocks,
        config.block_size,
        prefix_caching=True,
        unhashed_first=config.reuse_unhashed_first,
    ),
    "radix": lambda config: _radix(config),
    "none": lambda config: HashKV(config.num_kv_blocks, config.block_size, prefix_caching=False),
}


def _radix(config: SchedulerConfig) -> KVCache:
    if config.radix_eviction == "blocks":
        return RadixKV(config.num_kv_blocks, config.block_size, config.radix_eviction_policy)
    return LeafKV(
        config.num_kv_blocks,
        config.block_size,
        config.radix_eviction_policy,
        to_fit=config.radix_eviction == "leaves-to-fit",
        answers_apart=config.answers_apart,
        keeps_answers=config.answers_cached,
        defers=config.batch_former == "prefill-only",
    )


def room_tokens(config: SchedulerConfig) -> int:
    """Tokens of the longest sequence that the pool can hold."""
    if not config.kv_groups:
        return config.num_kv_blocks * config.block_size
    return longest_that_fits(
        config.kv_groups, config.num_kv_blocks, config.block_size, admitted_tokens(config)
    )


def _grouped(config: SchedulerConfig) -> KVCache:
    caching = config.enable_prefix_caching and config.prefix_cache != "none"
    return GroupedKV(
        config.kv_groups,
        config.num_kv_blocks,
        config.block_size,
        prefix_caching=caching,
        unhashed_first=config.reuse_unhashed_first,
        overlaps=config.async_scheduling,
        awaits_outcome=config.windows_await_outcome,
        replay_only=config.windows_keep_replays,
        leaves_gaps=config.states_leave_gaps,
        marks_again=config.states_marked_again,
        capped=config.windows_cap_prompts,
        flight_tokens=flight_tokens(config),
        max_model_len=config.max_model_len,
    )


def build_cache(config: SchedulerConfig) -> KVCache:
    """The KV cache of one instance."""
    if config.kv_groups:
        return _grouped(config)
    return PREFIX_CACHES[config.prefix_cache if config.enable_prefix_caching else "none"](config)
