"""Prefix caches by name."""

from __future__ import annotations

from collections.abc import Callable

from blis_py.core.config import SchedulerConfig
from blis_py.core.hash_kv import HashKV
from blis_py.core.kv import KVCache
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


def build_cache(config: SchedulerConfig) -> KVCache:
    """The KV cache of one instance."""
    return PREFIX_CACHES[config.prefix_cache if config.enable_prefix_caching else "none"](config)
