"""From a configuration to an engine for block diffusion."""

from __future__ import annotations

from dataclasses import asdict

import torch

from blis_py.core.diffusion import DiffusionScheduler
from blis_py.errors import InputError
from engine.build import pick_device, run_meta, watch_kernels
from engine.clock import Clock
from engine.config import EngineConfig
from engine.diffusion.engine import DiffusionEngine
from engine.diffusion.executor import DiffusionExecutor, lay_out
from engine.diffusion.graphs import BlockGraphs
from engine.diffusion.settings import DllmSettings, mask_token
from engine.diffusion.slots import BlockSlots
from engine.diffusion.steplog import RoundRecorder
from engine.diffusion.top_k_per_step import TopKPerStep
from engine.diffusion.warm_up import warm_up_rounds
from engine.executor import Model
from engine.graphs import Capture, CudaCapture, default_buckets
from engine.kernels.gpu import gpu_of
from engine.kv_pool import KVCache, allocate, capacity
from engine.memory import check_memory
from engine.models import build_model, load_model_config, load_tokenizer
from engine.models.tokenizer import Tokenizer
from engine.models.weights import weight_bytes
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
    if config.async_scheduling:
        raise InputError(
            "block diffusion has no overlapped loop: its next batch depends on what this one finishes",
            key="async_scheduling",
            value=True,
            fix="leave it off; --dllm-fdfo goes from round to round without the scheduler",
        )
    device = pick_device(config.device)
    dtype: torch.dtype = getattr(torch, config.dtype_on(device.type))
    compilations = watch_kernels(device)
    if model is None:
        mask_id, architecture = mask_token(config.model), load_model_config(config.model)
        check_memory(config, architecture, dtype, device, weight_bytes(architecture, dtype))
        model = build_model(
            architecture,
            device=device,
            dtype=dtype,
            load_format=config.load_format,
            path=config.model,
            seed=config.seed,
            max_positions=config.max_model_len,
        )
        tokenizer = tokenizer or load_tokenizer(config.tokenizer or config.model)
    else:
        check_memory(config, model.config, dtype, device)
    if mask_id is None:
        raise InputError("missing", key="mask_id", fix="give the id of the model's mask token")
    sizes, loaded = model.config, model

    def profile() -> None:
        largest_round(loaded, config, dtype, device)

    room = capacity(config, sizes, dtype, device, profile)
    core = settings.core(sizes.mask_block)
    scheduler = DiffusionScheduler(config.scheduler_config(room.num_blocks, room.max_model_len), core)
    slots = BlockSlots(config.max_num_seqs, core.block_tokens, mask_id, settings.algorithm, device)
    kv = allocate(sizes, room.num_blocks, config.block_size, dtype, device)
    capture = CudaCapture() if device.type == "cuda" else None
    executor = make_executor(config, model, kv, slots, room.max_model_len, capture)
    if clock is None:
        clock = clock_for(
            config,
            model,
            lambda small, model: build_diffusion_engine(
                small, DllmSettings(TopKPerStep(), reloop=False), model=model, mask_id=mask_id
            ),
            model.config.mask_block,
        )
    compilations.ready()
    return DiffusionEngine(
        scheduler=scheduler,
        executor=executor,
        clock=clock,
        recorder=RoundRecorder(
            run_meta(config, scheduler.config, room, device, dtype, clock)
            | {"diffusion": asdict(core), "algorithm": repr(settings.algorithm)}
        ),
        vocab_size=sizes.vocab_size,
        tokenizer=tokenizer,
        compilations=compilations,
    )


def make_executor(
    config: EngineConfig,
    model: Model,
    kv: KVCache,
    slots: BlockSlots,
    max_model_len: int,
    capture: Capture | None,
) -> DiffusionExecutor:
    """What runs the rounds, warmed up and with its graphs captured.

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
    """As many tokens as a round can have, with logits for every position of every slot; stores nothing.

    The tokens differ, so that they go to different experts.
    """
    block, most = model.config.mask_block, model.config.max_position_embeddings
    longest = min(config.max_num_batched_tokens, config.max_model_len or most, most)
    full, rest = divmod(config.max_num_batched_tokens, longest)
    lengths = ([longest] * full + [rest] * (rest > 0))[: config.max_num_seqs]
    spans = [(0, length, [0] * -(-length // config.block_size)) for length in lengths]
    positions, places, meta = lay_out(spans, config.block_size, block, device)
    page = allocate(model.config, 1, config.block_size, dtype, device)
    ids = torch.arange(len(positions), device=device) % model.config.vocab_size
    hidden = model(ids, positions, torch.full_like(places, -1), meta, page)
    model.logits(hidden[: config.max_num_seqs * block]).logsumexp(dim=-1)
