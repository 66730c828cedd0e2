"""From a configuration to an engine for block diffusion."""

from __future__ import annotations

from dataclasses import asdict

import torch

from blis_py.core.diffusion import DiffusionScheduler
from blis_py.errors import InputError
from engine.build import pick_device, run_meta
from engine.clock import Clock
from engine.config import EngineConfig
from engine.diffusion.engine import DiffusionEngine
from engine.diffusion.executor import DiffusionExecutor
from engine.diffusion.graphs import BlockGraphs
from engine.diffusion.settings import DllmSettings, mask_token
from engine.diffusion.slots import BlockSlots
from engine.diffusion.steplog import RoundRecorder
from engine.diffusion.top_k_per_step import TopKPerStep
from engine.executor import Model
from engine.graphs import CudaCapture, default_buckets
from engine.kernels.attention import AttentionMetadata
from engine.kv_pool import allocate, capacity
from engine.models import build_model, load_model_config, load_tokenizer
from engine.models.tokenizer import Tokenizer
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
    device = pick_device(config.device)
    dtype: torch.dtype = getattr(torch, config.dtype_on(device.type))
    if model is None:
        mask_id = mask_token(config.model)
        model = build_model(
            load_model_config(config.model),
            device=device,
            dtype=dtype,
            load_format=config.load_format,
            path=config.model,
            seed=config.seed,
            max_positions=config.max_model_len,
        )
        tokenizer = tokenizer or load_tokenizer(config.tokenizer or config.model)
    if mask_id is None:
        raise InputError("missing", key="mask_id", fix="give the id of the model's mask token")
    sizes, loaded = model.config, model

    def profile() -> None:
        _largest_round(loaded, config, dtype, device)

    room = capacity(config, sizes, dtype, device, profile)
    core = settings.core(sizes.mask_block)
    scheduler = DiffusionScheduler(config.scheduler_config(room.num_blocks, room.max_model_len), core)
    slots = BlockSlots(config.max_num_seqs, core.block_tokens, mask_id, settings.algorithm, device)
    kv = allocate(sizes, room.num_blocks, config.block_size, dtype, device)
    graphs = None
    if device.type == "cuda" and not config.enforce_eager:
        with torch.inference_mode():
            graphs = BlockGraphs(
                model,
                kv,
                block_tokens=core.block_tokens,
                page_tokens=config.block_size,
                max_model_len=room.max_model_len,
                buckets=config.cudagraph_capture_sizes or default_buckets(config.max_num_seqs),
                device=device,
                capture=CudaCapture(),
            )
    if clock is None:
        clock = clock_for(
            config,
            model,
            lambda small, model: build_diffusion_engine(
                small, DllmSettings(TopKPerStep(), reloop=False), model=model, mask_id=mask_id
            ),
            model.config.mask_block,
        )
    return DiffusionEngine(
        scheduler=scheduler,
        executor=DiffusionExecutor(model, kv, slots, config.block_size, graphs),
        clock=clock,
        recorder=RoundRecorder(
            run_meta(config, scheduler.config, room, device, dtype, clock)
            | {"diffusion": asdict(core), "algorithm": repr(settings.algorithm)}
        ),
        vocab_size=sizes.vocab_size,
        tokenizer=tokenizer,
    )


@torch.inference_mode()
def _largest_round(model: Model, config: EngineConfig, dtype: torch.dtype, device: torch.device) -> None:
    """As many tokens as a round can have, with logits for every position of every slot; stores nothing."""
    block, tokens = model.config.mask_block, config.max_num_batched_tokens
    meta = AttentionMetadata(
        query_start=torch.tensor([0, tokens], dtype=torch.int32, device=device),
        seq_lens=torch.tensor([tokens], dtype=torch.int32, device=device),
        block_tables=torch.zeros((1, -(-tokens // config.block_size)), dtype=torch.int32, device=device),
        max_query_len=tokens,
        max_seq_len=tokens,
        num_decodes=0,
        mask_block=block,
    )
    positions = torch.arange(tokens, device=device) % model.config.max_position_embeddings
    page = allocate(model.config, 1, config.block_size, dtype, device)
    nowhere = torch.full((tokens,), -1, dtype=torch.int64, device=device)
    hidden = model(torch.zeros_like(nowhere), positions, nowhere, meta, page)
    model.logits(hidden[: config.max_num_seqs * block]).logsumexp(dim=-1)
