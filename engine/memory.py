"""Memory check of an engine's settings before anything is allocated."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from blis_py.core.blocks import block_count
from blis_py.errors import InputError
from engine.config import EngineConfig
from engine.graphs import default_buckets
from engine.kv_pool import block_bytes, kv_dtype

_POOL_BYTES = 40
"""Host bytes per KV page: a Python integer and the list's reference to it."""
_GROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""Files with the memory limit of the control group, version 2 and 1."""


@dataclass(frozen=True, slots=True)
class Need:
    """Memory required by one setting."""

    key: str
    value: Any
    what: str
    host: int
    device: int
    """Bytes."""
    fix: str


def check_memory(
    config: EngineConfig, sizes: Any, dtype: torch.dtype, device: torch.device, weights: int = 0
) -> None:
    """Refuse settings whose allocations exceed the available memory.

    Args:
        sizes: the `ModelConfig`.
        weights: bytes of weights still to be loaded.

    Raises:
        InputError: host or device has too little memory; names the setting that takes the most.
    """
    needs = memory_needs(config, sizes, dtype, device)
    needs.append(Need("model", config.model, "the weights", 0, weights, "use a smaller model"))
    host = host_bytes()
    if device.type == "cuda":
        _check([(need, need.host) for need in needs], host, "the host")
        free = int(torch.cuda.mem_get_info(device)[0])
        _check([(need, need.device) for need in needs], free, "the GPU")
    else:
        _check([(need, need.host + need.device) for need in needs], host, "the host")


def _check(needs: Sequence[tuple[Need, int]], there: int, where: str) -> None:
    if sum(nbytes for _, nbytes in needs) <= there:
        return
    most, nbytes = max(needs, key=lambda need: need[1])
    problem = f"{most.what} would take {nbytes / 1e9:,.1f} GB, {where} has {there / 1e9:,.1f} GB free"
    raise InputError(problem, key=most.key, value=most.value, fix=most.fix)


def memory_needs(config: EngineConfig, sizes: Any, dtype: torch.dtype, device: torch.device) -> list[Need]:
    """Allocations of an engine that grow with its settings."""
    block = getattr(sizes, "mask_block", 1)
    with_graphs = device.type == "cuda" and not config.enforce_eager
    buckets = config.cudagraph_capture_sizes or default_buckets(config.max_num_seqs)
    seqs = max(config.max_num_seqs, max(buckets) if with_graphs else 0)
    tokens = max(config.max_num_batched_tokens, seqs)
    length = min(config.max_model_len or sizes.max_position_embeddings, sizes.max_position_embeddings)
    table = 4 * block_count(length, config.block_size)
    per_seq = 2 * table + 32 * block
    sequences, batch = seqs * per_seq, 32 * tokens
    more_seqs = seqs > config.max_num_seqs and config.cudagraph_capture_sizes is not None
    return [
        *_kv_cache(config, block_bytes(sizes, config.block_size, kv_dtype(config, dtype))),
        Need(
            "cudagraph_capture_sizes" if more_seqs else "max_num_seqs",
            seqs,
            f"page tables for {seqs:,} sequences of {length:,} tokens",
            host=sequences,
            device=sequences if device.type == "cuda" else 0,
            fix="lower it, or max_model_len",
        ),
        Need(
            "max_num_batched_tokens",
            config.max_num_batched_tokens,
            f"the inputs of steps of {tokens:,} tokens",
            host=batch,
            device=batch if device.type == "cuda" else 0,
            fix="lower it",
        ),
    ]


def _kv_cache(config: EngineConfig, page: int) -> list[Need]:
    """KV cache of the configured size; without one, the cache adapts to the memory."""
    if config.num_kv_blocks is not None:
        key, blocks = "num_kv_blocks", config.num_kv_blocks
    elif config.kv_cache_memory_bytes is not None:
        key, blocks = "kv_cache_memory_bytes", config.kv_cache_memory_bytes // page
    else:
        return []
    what = f"a KV cache of {blocks:,} pages of {page:,} bytes"
    need = Need(key, getattr(config, key), what, blocks * _POOL_BYTES, blocks * page, "lower it")
    return [need]


def host_bytes() -> int:
    """Available host memory in bytes, within the limit of the control group."""
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    lines = _text(Path("/proc/meminfo")).splitlines()
    free = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    limits = (_text(Path("/sys/fs/cgroup") / name).strip() for name in _GROUP_LIMITS)
    return min([here, *free, *(int(limit) for limit in limits if limit.isdigit())])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
