"""Construction of an engine from a configuration: model, KV cache, scheduler, graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from blis_py.core.blocks import block_count
from blis_py.core.config import SchedulerConfig, stored
from blis_py.core.scheduler import Scheduler
from blis_py.errors import InputError
from engine.batch import BatchBuilder
from engine.clock import Clock, clock_facts
from engine.config import PAGED, EngineConfig
from engine.engine import LLMEngine
from engine.executor import Executor, Forward, Model
from engine.forward_context import ForwardContext
from engine.graphs import Capture, CudaCapture, DecodeGraphs, default_buckets
from engine.kernels import backend
from engine.kernels.attention import AttentionMetadata, paged_attention
from engine.kernels.compilations import CompilationWatch, watch
from engine.kernels.cuda import library
from engine.kernels.dependent_check import dependent_launch_works
from engine.kernels.gpu import gpu_of
from engine.kernels.prompt_attention import prompt_attention
from engine.kv_pool import Capacity, allocate, capacity, kv_dtype
from engine.launching import launch_side
from engine.memory import check_memory
from engine.mixed_graphs import MixedGraphs, default_sizes
from engine.models import build_model, load_model_config, load_tokenizer
from engine.models.config import ModelConfig
from engine.models.tokenizer import Tokenizer
from engine.models.weights import weight_bytes
from engine.sampler import Sampler
from engine.steplog import StepRecorder
from engine.timing import StepTimer
from engine.warm_up import Bounds, warm_up
from engine.yardstick import clock_for


def build_engine(
    config: EngineConfig,
    *,
    model: Model | None = None,
    tokenizer: Tokenizer | None = None,
    clock: Clock | None = None,
) -> LLMEngine:
    """Build an engine, ready to serve; on CUDA its decode graphs are captured.

    Args:
        model: used instead of loading the configured one.
        tokenizer: the same.

    Raises:
        InputError: an unknown or damaged model, one that does not fit, or invalid settings.
    """
    device = pick_device(config.device)
    config = config.on(device.type)
    dtype: torch.dtype = getattr(torch, config.dtype)
    compilations = watch_kernels(device)
    if model is None:
        model, tokenizer = _load(config, device, dtype, tokenizer)
    else:
        check_memory(config, model.config, dtype, device)
    sizes = model.config

    def profile() -> None:
        largest_forward(model, config, dtype, device)

    room = capacity(config, sizes, dtype, device, profile)
    scheduler = Scheduler(config.scheduler_config(room.num_blocks, room.max_model_len), track_longest=True)
    pages = allocate(sizes, room.num_blocks, config.block_size, kv_dtype(config, dtype), device)
    dependent = config.dependent_launch and dependent_launch_works(sizes, dtype, device)
    forward = Forward(model, pages, dependent, prompt_attention(config.attention_backend, device))
    capture = CudaCapture() if device.type == "cuda" else None
    executor = make_executor(config, forward, room.max_model_len, device, capture)
    if clock is None:
        clock = clock_for(config, model, lambda small, model: build_engine(small, model=model))
    compilations.ready()
    return LLMEngine(
        scheduler=scheduler,
        executor=executor,
        sampler=Sampler(device),
        recorder=StepRecorder(
            run_meta(config, scheduler.config, room, device, dtype, clock)
            | ({"dependent_launch": forward.dependent} if config.dependent_launch else {})
            | ({} if config.attention_backend == PAGED else {"attention": config.attention_backend})
        ),
        clock=clock,
        timer=StepTimer(clock, device),
        vocab_size=sizes.vocab_size,
        tokenizer=tokenizer,
        seed=config.seed,
        compilations=compilations,
    )


def pick_device(name: str) -> torch.device:
    """The device to run on.

    Raises:
        InputError: CUDA is requested and not available.
    """
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise InputError("there is no CUDA device", key="device", value=name, fix="use --device cpu")
    return torch.device("cuda" if there and name != "cpu" else "cpu")


def watch_kernels(device: torch.device) -> CompilationWatch:
    """Count the kernels compiled while the engine waits, starting with the library of CUDA C++ kernels."""
    compilations = CompilationWatch()
    if device.type == "cuda":
        watch()
        library.available()
    return compilations


def _load(
    config: EngineConfig, device: torch.device, dtype: torch.dtype, tokenizer: Tokenizer | None
) -> tuple[Model, Tokenizer]:
    from engine.kinds import require_autoregressive

    architecture = load_model_config(config.model)
    require_autoregressive(architecture, config.model)
    return load(config, architecture, device, dtype, tokenizer)


def load(
    config: EngineConfig,
    architecture: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    tokenizer: Tokenizer | None,
) -> tuple[Model, Tokenizer]:
    """Load the configured model, and its tokenizer if it has one.

    Raises:
        InputError: a damaged model, or one that does not fit.
    """
    if dtype is torch.float16 and architecture.exceeds_float16:
        problem = "this model's activations exceed the range of float16, which yields NaN"
        raise InputError(problem, key="dtype", value="float16", fix="use bfloat16 or float32")
    settled = config.on(device.type, architecture.mask_block)
    check_memory(settled, architecture, dtype, device, weight_bytes(architecture, dtype))
    model = build_model(
        architecture,
        device=device,
        dtype=dtype,
        load_format=config.load_format,
        path=config.model,
        seed=config.seed,
        max_positions=config.max_model_len,
    )
    return model, tokenizer or load_tokenizer(config.tokenizer or config.model)


def make_executor(
    config: EngineConfig, forward: Forward, max_model_len: int, device: torch.device, capture: Capture | None
) -> Executor:
    """Build the executor of steps, warmed up and with its decode graphs captured.

    Args:
        capture: the graph capture; None on the CPU, which has no kernels to warm up and no graphs.
    """
    graphs = mixed = expert_load = None
    if config.count_active_experts:
        expert_load = forward.model.track_expert_load()
    with_graphs = capture is not None and not config.enforce_eager
    buckets = config.cudagraph_capture_sizes or default_buckets(config.max_num_seqs)
    builder = BatchBuilder(
        max_seqs=config.max_num_seqs,
        max_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        block_size=config.block_size,
        device=device,
        largest_bucket=max(buckets) if with_graphs else 0,
        overlapped=config.async_scheduling,
        check_relay=config.check_relay,
    )
    if capture is not None:
        builder.plan = _planner(forward)
        warm_up(forward, builder, Bounds.of(config, max_model_len), gpu_of(device))
        if with_graphs:
            sizes = config.cudagraph_mixed_sizes
            sizes = default_sizes(config.max_num_batched_tokens) if sizes is None else sizes
            seqs = config.max_num_seqs
            with torch.inference_mode():
                graphs = DecodeGraphs(forward, builder, max_model_len, buckets, capture)
                mixed = MixedGraphs(forward, builder, max_model_len, sizes, seqs, capture)
    if expert_load is not None:
        expert_load.zero_()
    side = launch_side(device, config.async_scheduling)
    return Executor(forward, builder, config.max_num_seqs, graphs, expert_load, side, mixed)


def _planner(forward: Forward) -> Callable[[torch.Tensor, int], dict[int, torch.Tensor]] | None:
    """Planner of decode attention by sliding window; None where no kernel does it."""
    if backend.choose(forward.kv[0][0], paged_attention.kernels) != "triton":
        return None
    from engine.kernels.triton.decode_attention import plan_decodes

    sizes = forward.model.config
    plan = partial(plan_decodes, num_kv_heads=sizes.num_kv_heads, head_dim=sizes.head_dim)
    windows = sorted(set(sizes.windows or (0,)))
    return lambda seq_lens, num_decodes: {
        window: plan(seq_lens, num_decodes, window=window) for window in windows
    }


@torch.inference_mode()
def largest_forward(model: Model, config: EngineConfig, dtype: torch.dtype, device: torch.device) -> None:
    """Run the largest possible forward: most tokens, sequences and rows of logits; stores nothing.

    All sequences read the same single page. The tokens differ, so that they go to different experts.
    """
    lengths = _lengths(config, model.config.max_position_embeddings)
    seqs, tokens, longest = len(lengths), int(lengths.sum()), int(lengths.max())
    starts = torch.zeros(seqs + 1, dtype=torch.int32)
    starts[1:] = lengths.cumsum(0)
    meta = AttentionMetadata(
        query_start=starts.to(device),
        seq_lens=lengths.to(device),
        block_tables=torch.zeros(
            (seqs, block_count(longest, config.block_size)), dtype=torch.int32, device=device
        ),
        max_query_len=longest,
        max_seq_len=longest,
        num_decodes=int((lengths == 1).sum()),
    )
    ids = torch.arange(tokens, device=device) % model.config.vocab_size
    zeros = torch.zeros_like(ids)
    page = allocate(model.config, 1, config.block_size, kv_dtype(config, dtype), device)
    hidden = model(ids, ForwardContext(zeros, zeros - 1, meta, page))
    logits = model.logits(hidden[:seqs])
    torch.log_softmax(logits, dim=-1).sort(dim=-1)  # roughly the peak of sampling


def _lengths(config: EngineConfig, max_position_embeddings: int) -> torch.Tensor:
    """New tokens `[S]` of each sequence of the largest step: as many single tokens as possible, then long
    ones."""
    seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
    longest = min(config.max_model_len or max_position_embeddings, max_position_embeddings)
    more = min(config.max_num_batched_tokens - seqs, seqs * (longest - 1))
    lengths = torch.ones(seqs, dtype=torch.int32)
    full, rest = divmod(more, longest - 1) if longest > 1 else (0, 0)
    lengths[seqs - full :] = longest
    if rest:
        lengths[seqs - full - 1] += rest
    return lengths


def run_meta(
    config: EngineConfig,
    scheduler: SchedulerConfig,
    room: Capacity,
    device: torch.device,
    dtype: torch.dtype,
    clock: Clock,
) -> dict[str, Any]:
    """Metadata of the engine for its step log."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {
        **clock_facts(clock),
        "model": config.model,
        "device": name,
        "dtype": str(dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "kv_capacity": room.source,
        "scheduler": stored(scheduler),
    }
