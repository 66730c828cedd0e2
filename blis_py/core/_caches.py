"""Prefix caches by name."""

from __future__ import annotations

from collections.abc import Callable

from blis_py.core.config import SchedulerConfig
from blis_py.core.hash_kv import HashKV
from blis_py.core.kv import KVCache
from blis_py.core.radix_kv import RadixKV

PREFIX_CACHES: dict[str, Callable[[SchedulerConfig], KVCache]] = {
    "hash": lambda config: HashKV(
        config.num_kv_blocks,
        config.block_size,
        prefix_caching=True,
        unhashed_first=config.reuse_unhashed_first,
    ),
    "radix": lambda config: RadixKV(config.num_kv_blocks, config.block_size, config.radix_eviction_policy),
    "none": lambda config: HashKV(config.num_kv_blocks, config.block_size, prefix_caching=False),
}


def build_cache(config: SchedulerConfig) -> KVCache:
    """The KV cache of one instance."""
    return PREFIX_CACHES[config.prefix_cache if config.enable_prefix_caching else "none"](config)
