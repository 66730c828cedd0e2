"""The paged KV pool: its capacity, and its tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from blis_py.errors import InputError
from engine.config import EngineConfig
from engine.forward_context import KVCache
from engine.kernels.fp8 import FP8

CPU_DEFAULT_BYTES = 256 << 20
"""Default size of the KV cache on the CPU, in bytes."""
_GIB = float(1 << 30)


class ModelSizes(Protocol):
    """Model sizes that determine page size and longest sequence; implemented by `ModelConfig`."""

    @property
    def num_layers(self) -> int: ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_position_embeddings(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Capacity:
    """Size of the KV cache."""

    num_blocks: int
    max_model_len: int
    source: str
    """Human-readable origin of the size."""


def kv_dtype(config: EngineConfig, dtype: torch.dtype) -> torch.dtype:
    """Type of keys and values for a model in `dtype`."""
    return FP8 if config.kv_cache_dtype == "fp8" else dtype


def block_bytes(sizes: ModelSizes, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of all layers in one page."""
    return 2 * sizes.num_layers * sizes.num_kv_heads * sizes.head_dim * block_size * dtype.itemsize


def allocate(
    sizes: ModelSizes, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> KVCache:
    """Allocate zeroed pages: masked values are multiplied by zero, so they must not be NaN.

    Raises:
        InputError: not enough memory.
    """
    shape = (num_blocks, sizes.num_kv_heads, block_size, sizes.head_dim)
    try:
        return [
            (torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))
            for _ in range(sizes.num_layers)
        ]
    except (torch.OutOfMemoryError, RuntimeError) as error:
        raise InputError(
            "the KV cache does not fit into memory",
            key="num_kv_blocks",
            value=num_blocks,
            fix="use fewer blocks, or a smaller gpu_memory_utilization",
        ) from error


def capacity(
    config: EngineConfig,
    sizes: ModelSizes,
    dtype: torch.dtype,
    device: torch.device,
    profile: Callable[[], None],
) -> Capacity:
    """Number of pages, and the resulting maximum sequence length.

    Args:
        profile: runs the largest possible forward; called where memory is measured.

    Raises:
        InputError: the model does not fit, or `max_model_len` does not fit into the cache.
    """
    per_block = block_bytes(sizes, config.block_size, kv_dtype(config, dtype))
    if config.num_kv_blocks is not None:
        blocks, source = config.num_kv_blocks, "as given"
    elif config.kv_cache_memory_bytes is not None:
        blocks = config.kv_cache_memory_bytes // per_block
        source = f"{config.kv_cache_memory_bytes / _GIB:.2f} GiB as given"
    elif device.type == "cuda":
        room = _measured_bytes(config, device, profile)
        blocks, source = room // per_block, f"{room / _GIB:.2f} GiB left after a profiling forward"
    else:
        blocks, source = CPU_DEFAULT_BYTES // per_block, f"{CPU_DEFAULT_BYTES / _GIB:.2f} GiB by default"
    if blocks < 1:
        raise InputError(
            f"no room for the KV cache: one block takes {per_block / _GIB:.3f} GiB ({source})",
            key="gpu_memory_utilization" if device.type == "cuda" else "kv_cache_memory_bytes",
            fix="give it more memory, lower max_num_batched_tokens, or use a smaller model or block_size",
        )
    return Capacity(blocks, _max_model_len(config, sizes, blocks * config.block_size), source)


def _max_model_len(config: EngineConfig, sizes: ModelSizes, room: int) -> int:
    longest = sizes.max_position_embeddings
    if config.max_model_len is None:
        return min(longest, room)
    if config.max_model_len > longest:
        raise InputError(
            f"is more than the model's own {longest}", key="max_model_len", value=config.max_model_len
        )
    if config.max_model_len > room:
        raise InputError(
            f"is more than the {room:,} tokens the KV cache holds",
            key="max_model_len",
            value=config.max_model_len,
            fix=f"use at most {room}, or give the KV cache more memory",
        )
    return config.max_model_len


def _measured_bytes(config: EngineConfig, device: torch.device, profile: Callable[[], None]) -> int:
    """Bytes left for the KV cache: the memory share, less the peak of a forward and other users.

    The forward runs twice: autotuning memory of the first run is not needed again.
    """
    try:
        profile()
    except torch.OutOfMemoryError as error:
        raise InputError(
            "the activations of the largest step do not fit",
            key="max_num_batched_tokens",
            value=config.max_num_batched_tokens,
            fix="lower it, or max_num_seqs",
        ) from error
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    profile()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    reserved = torch.cuda.memory_reserved(device)
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - reserved
    torch.cuda.empty_cache()
    room = int(total * config.gpu_memory_utilization) - peak - others
    if room <= 0:
        raise InputError(
            f"the model does not fit: weights and activations take {peak / _GIB:.1f} GiB and others "
            f"{others / _GIB:.1f} GiB of the {total / _GIB:.1f} GiB of this GPU",
            key="gpu_memory_utilization",
            value=config.gpu_memory_utilization,
            fix="raise it, lower max_num_batched_tokens or max_num_seqs, or use a smaller model",
        )
    return room
