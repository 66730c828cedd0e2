"""An engine for block diffusion from its configuration."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial

import torch

from blis_py.core.blocks import block_count
from blis_py.core.diffusion import DiffusionScheduler
from blis_py.errors import InputError
from engine.build import load, pick_device, run_meta, watch_kernels
from engine.clock import Clock
from engine.config import PAGED, EngineConfig
from engine.diffusion.engine import DiffusionEngine
from engine.diffusion.executor import DiffusionExecutor, lay_out
from engine.diffusion.graphs import BlockGraphs
from engine.diffusion.settings import DllmSettings, mask_token
from engine.diffusion.slots import BlockSlots
from engine.diffusion.steplog import RoundRecorder
from engine.diffusion.top_k_per_step import TopKPerStep
from engine.diffusion.warm_up import warm_up_rounds
from engine.executor import Model
from engine.forward_context import KVCache
from engine.graphs import Capture, CudaCapture, default_buckets
from engine.kernels.gpu import gpu_of
from engine.kv_pool import allocate, capacity
from engine.memory import check_memory
from engine.models import load_model_config
from engine.models.tokenizer import Tokenizer
from engine.warm_up import Bounds
from engine.yardstick import clock_for


def build_diffusion_engine(
    config: EngineConfig,
    settings: DllmSettings,
    *,
    model: Model | None = None,
    tokenizer: Tokenizer | None = None,
    mask_id: int | None = None,
    clock: Clock | None = None,
) -> DiffusionEngine:
    """An engine, ready to serve; on CUDA its rounds are captured.

    Args:
        config: `block_size`, the page, must be a multiple of the model's diffusion block, `max_num_seqs` is
            the number of request slots.
        model, tokenizer, mask_id: instead of loading those the configuration names; model and mask id
            come together.

    Raises:
        InputError: the model is unknown, damaged, not for block diffusion, or does not fit; settings that
            cannot work.
    """
    _check_supported(config)
    if config.kv_cache_dtype != "auto":
        fix = "leave it out"
        raise InputError("not for block diffusion", key="kv_cache_dtype", value="fp8", fix=fix)
    device = pick_device(config.device)
    block = load_model_config(config.model).mask_block if model is None else model.config.mask_block
    config = config.on(device.type, block)
    dtype: torch.dtype = getattr(torch, config.dtype)
    compilations = watch_kernels(device)
    model, tokenizer, mask_id = _served(config, device, dtype, model, tokenizer, mask_id)
    room = capacity(config, model.config, dtype, device, partial(largest_round, model, config, dtype, device))
    core = settings.core(model.config.mask_block)
    scheduler = DiffusionScheduler(config.scheduler_config(room.num_blocks, room.max_model_len), core)
    slots = BlockSlots(config.max_num_seqs, core.block_tokens, mask_id, settings.algorithm, device)
    kv = allocate(model.config, room.num_blocks, config.block_size, dtype, device)
    capture = CudaCapture() if device.type == "cuda" else None
    executor = make_executor(config, model, kv, slots, room.max_model_len, capture)
    if clock is None:
        clock = _clock(config, model, mask_id)
    compilations.ready()
    meta = run_meta(config, scheduler.config, room, device, dtype, clock)
    return DiffusionEngine(
        scheduler=scheduler,
        executor=executor,
        clock=clock,
        recorder=RoundRecorder(meta | {"diffusion": asdict(core), "algorithm": repr(settings.algorithm)}),
        vocab_size=model.config.vocab_size,
        tokenizer=tokenizer,
        compilations=compilations,
    )


def _check_supported(config: EngineConfig) -> None:
    if config.dependent_launch:
        problem = "kernels of block diffusion are not launched early"
        raise InputError(problem, key="dependent_launch", value=True, fix="leave it off")
    if config.attention_backend != PAGED:
        problem = "block diffusion has the engine's own attention"
        raise InputError(problem, key="attention_backend", value=config.attention_backend, fix=f"use {PAGED}")
    if config.async_scheduling:
        raise InputError(
            "block diffusion has no overlapped loop: its next batch depends on what this one finishes",
            key="async_scheduling",
            value=True,
            fix="leave it off; --dllm-fdfo goes from round to round without the scheduler",
        )


def _served(
    config: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    model: Model | None,
    tokenizer: Tokenizer | None,
    mask_id: int | None,
) -> tuple[Model, Tokenizer | None, int]:
    """Model, tokenizer and mask token: those given, or those the configuration names."""
    if model is None:
        mask_id = mask_token(config.model)
        model, tokenizer = load(config, load_model_config(config.model), device, dtype, tokenizer)
    else:
        check_memory(config, model.config, dtype, device)
    if mask_id is None:
        raise InputError("missing", key="mask_id", fix="give the id of the model's mask token")
    return model, tokenizer, mask_id


def _clock(config: EngineConfig, model: Model, mask_id: int) -> Clock:
    """The one that the configuration names; a steady one measures a twin that unmasks token by token."""
    settings = DllmSettings(TopKPerStep(), reloop=False)

    def twin(small: EngineConfig, model: Model | None) -> DiffusionEngine:
        return build_diffusion_engine(small, settings, model=model, mask_id=mask_id)

    return clock_for(config, model, twin, model.config.mask_block)


def make_executor(
    config: EngineConfig,
    model: Model,
    kv: KVCache,
    slots: BlockSlots,
    max_model_len: int,
    capture: Capture | None,
) -> DiffusionExecutor:
    """The executor of rounds, warmed up and with its graphs captured.

    Args:
        capture: how; None where there are no kernels to warm up and no graphs, which is the CPU.
    """
    graphs, block, device = None, slots.block_tokens, slots.device
    if capture is not None:
        bounds = Bounds.of(config, max_model_len, block)
        warm_up_rounds(model, kv, config.block_size, slots.algorithm, slots.mask_id, bounds, gpu_of(device))
        if not config.enforce_eager:
            with torch.inference_mode():
                graphs = BlockGraphs(
                    model,
                    kv,
                    block_tokens=block,
                    page_tokens=config.block_size,
                    max_model_len=max_model_len,
                    buckets=config.cudagraph_capture_sizes or default_buckets(config.max_num_seqs),
                    device=device,
                    capture=capture,
                )
    return DiffusionExecutor(model, kv, slots, config.block_size, graphs)


@torch.inference_mode()
def largest_round(model: Model, config: EngineConfig, dtype: torch.dtype, device: torch.device) -> None:
    """Dry forward of the most tokens of a round, with logits for all positions of all slots; stores nothing.

    The tokens differ, so that they go to different experts.
    """
    block, most = model.config.mask_block, model.config.max_position_embeddings
    longest = min(config.max_num_batched_tokens, config.max_model_len or most, most)
    full, rest = divmod(config.max_num_batched_tokens, longest)
    lengths = ([longest] * full + [rest] * (rest > 0))[: config.max_num_seqs]
    spans = [(0, length, [0] * block_count(length, config.block_size)) for length in lengths]
    page = allocate(model.config, 1, config.block_size, dtype, device)
    context = lay_out(spans, config.block_size, block, page, device)
    ids = torch.arange(len(context.positions), device=device) % model.config.vocab_size
    hidden = model(ids, replace(context, slots=torch.full_like(context.slots, -1)))
    model.logits(hidden[: config.max_num_seqs * block]).logsumexp(dim=-1)
