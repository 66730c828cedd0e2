"""KV blocks and maximum sequence length of a run: as given, or as memory permits."""

from __future__ import annotations

from dataclasses import replace

from blis_py.config.derived import LaunchedEngine, settings_of, state_copies
from blis_py.config.engine import load_engine
from blis_py.config.models import RunConfig
from blis_py.core.config import SchedulerConfig
from blis_py.core.kv_groups import admitted_tokens, longest_that_fits
from blis_py.errors import InputError
from blis_py.hardware.capacity import KvCapacity, check_tp, kv_capacity
from blis_py.hardware.gpu import GpuSpec
from blis_py.hardware.layout import Layout
from blis_py.hardware.memory_overheads import (
    GRAPH_GIB,
    GRAPH_RANGE_GIB,
    GRAPHS_COUNTED,
    OVERHEADS,
    UNCERTAIN_POOLS,
    MemoryOverheads,
)
from blis_py.models.kv_pages import KVPages
from blis_py.models.model_shape import ModelShape
from blis_py.setup.demand import Demand


def layout_of(config: RunConfig) -> Layout:
    """The division of a model among an instance's GPUs."""
    return Layout(config.tp, config.attention_dp, config.ep, config.redundant_experts)


def capacity(
    config: RunConfig, shape: ModelShape, gpu: GpuSpec, pages: KVPages | None = None
) -> tuple[str, int, int | None]:
    """A one-line description of the KV capacity, the blocks of one instance, and the requests that may run.

    These are of a replica, as its memory for states permits; None = any number, also where the KV blocks are
    given.

    Args:
        pages: groups of layers that share the blocks, if there are several.

    Raises:
        InputError: the model does not fit, or the parallelism does not divide it.
    """
    layout = layout_of(config)
    layout.check(shape)
    check_tp(shape, layout.attention_tp)
    settings = config.scheduler
    given = settings.num_kv_blocks
    try:
        computed = kv_capacity(
            shape,
            gpu,
            config.tp,
            block_size=settings.block_size,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
            overheads=_overheads(config),
            layout=layout,
            states=_stated_sequences(config),
            pages=pages,
        )
    except InputError:
        if given is None:
            raise
        fits = "by its memory the model would not fit"
    else:
        if given is None:
            replicas = f", on each of {layout.attention_dp} replicas" if layout.attention_dp > 1 else ""
            blocks = computed.blocks * layout.attention_dp
            return (
                computed.describe() + replicas + _certainty(config, shape),
                blocks,
                _running(config, computed),
            )
        fits = f"by its memory {computed.blocks:,}"
    groups = 1 if pages is None else len(pages.groups)
    line = (
        f"KV capacity: {given:,} blocks of {settings.block_size} = "
        f"{given // groups * settings.block_size:,} tokens "
        f"(as given; {fits}: {shape.name} on {gpu.name} TP{config.tp})"
    )
    return line, given, None


def _stated_sequences(config: RunConfig) -> int | None:
    """Sequences for whose states SGLang makes room where they need no copies and a user limits the running
    requests (`max_running_requests` with `disable_radix_cache`); None = for its share of the pool."""
    settings = config.scheduler
    caches = settings.enable_prefix_caching and settings.prefix_cache != "none"
    limited = config.given is not None and "scheduler.max_num_seqs" in config.given
    return settings.max_num_seqs if config.memory == "sglang" and limited and not caches else None


def _room_tokens(config: RunConfig, pages: KVPages | None, num_kv_blocks: int) -> int:
    """Tokens of the longest sequence that a replica's blocks hold."""
    settings = config.scheduler
    if pages is None:
        return num_kv_blocks * settings.block_size
    return longest_that_fits(pages.groups, num_kv_blocks, settings.block_size, admitted_tokens(settings))


def _overheads(config: RunConfig) -> MemoryOverheads:
    """The engine's memory beyond weights and KV, by its release."""
    overheads = OVERHEADS[config.memory]
    if config.memory == "vllm" and not config.scheduler.hybrid_kv_cache:
        overheads = replace(overheads, windows_apart=False)
    return replace(overheads, graph_gib=_graph_gib(config)) if _counts_graphs(config) else overheads


def _graph_gib(config: RunConfig) -> float:
    return GRAPH_GIB if config.graph_memory_gib is None else config.graph_memory_gib


def _counts_graphs(config: RunConfig) -> bool:
    if config.memory != "vllm" or not config.latency.cuda_graphs:
        return False
    return config.graph_memory_gib is not None or load_engine(config.engine).release >= GRAPHS_COUNTED


def _certainty(config: RunConfig, shape: ModelShape) -> str:
    """The range of the memory of CUDA graphs, where the release counts it."""
    if not _counts_graphs(config):
        return ""
    low, high = GRAPH_RANGE_GIB
    known = f"logs: {low:g} to {high:g}" if config.graph_memory_gib is None else "as given"
    text = f"; of the overhead {_graph_gib(config):g} GiB are CUDA graphs ({known})"
    spread = shape.is_moe and (config.attention_dp > 1 or config.ep > 1)
    if load_engine(config.engine).release >= UNCERTAIN_POOLS and (spread or shape.linear is not None):
        text += "; pool uncertain: read it from your server's log and give it with --num-kv-blocks"
    return text


def _running(config: RunConfig, computed: KvCapacity) -> int | None:
    """Requests that may run on a replica; SGLang keeps copies of their states."""
    if computed.sequences is None or not OVERHEADS[config.memory].state_share:
        return computed.sequences
    server = LaunchedEngine(settings_of(config), load_engine(config.engine).release)
    return max(computed.sequences // state_copies(server), 1)


def kv_type_notes(
    config: RunConfig, shape: ModelShape, scheduler: SchedulerConfig, requested: Demand, instances: int
) -> list[str]:
    """A note where the type of the KV cache decides whether the requests of closed loops run all at once."""
    loops, limit = requested.loops, config.workload.concurrency
    if (loops is None and limit is None) or not len(requested.table):
        return []
    table = requested.table
    in_flight = limit or 0 if loops is None else sum(loop.permits or 0 for loop in loops.parts)
    permits = in_flight / instances
    each = table.prompt_tokens.mean() + table.output_tokens.mean() / 2
    held_tokens = min(permits, scheduler.max_num_seqs) * each
    groups = max(len(scheduler.kv_groups), 1)
    room = scheduler.num_kv_blocks // groups * scheduler.block_size
    narrow = shape.kv_dtype_bytes == 1
    other, name, otherwise = (room / 2, "8", "16") if narrow else (room * 2, "16", "8")
    if (held_tokens <= room) == (held_tokens <= other):
        return []
    return [
        f"the type of the KV cache decides: the requests in flight hold about {held_tokens:,.0f} tokens at "
        f"once, {room:,} fit in {name} bits, {other:,.0f} in {otherwise} (--kv-cache-dtype)"
    ]


def longest_sequence(
    config: RunConfig, shape: ModelShape, num_kv_blocks: int, pages: KVPages | None = None
) -> tuple[int, list[str]]:
    """The maximum sequence length in tokens, and notes on it.

    Args:
        pages: as for `capacity`.

    Raises:
        InputError: a configured length exceeds the KV cache.
    """
    given = config.scheduler.max_model_len
    room = _room_tokens(config, pages, num_kv_blocks // config.attention_dp)
    if given is None:
        return min(shape.max_position_embeddings, room), []
    if given > room:
        raise InputError(
            f"is more than the {room:,} tokens the KV cache holds",
            key="--max-model-len",
            value=given,
            fix=f"use at most {room}, or 0 for automatic",
        )
    limit = shape.max_position_embeddings
    return given, [f"max_model_len {given:,} is beyond the model's own {limit:,}"] if given > limit else []
