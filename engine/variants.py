"""All variants of the Triton kernels that an engine can launch, determined without a GPU.

An engine is built as on a GPU, around a model without weights: the largest forward, the warm-up batches and
the graph captures are dry runs (`engine.kernels.dry_run`). The list thus contains the launches of an engine
before it serves, which include all later ones (`engine.warm_up`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from engine.build import largest_forward, make_executor
from engine.config import EngineConfig
from engine.diffusion import dry
from engine.executor import Executor, Forward
from engine.graphs import Replay
from engine.kernels.dry_run import Variant, recorded
from engine.kernels.gpu import Gpu
from engine.kv_pool import allocate, kv_dtype
from engine.memory import check_memory
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.weights import shapes_only

META = torch.device("meta")
_PAGES = 1024
"""Pages of a KV cache without memory. Their number affects no launch."""


def variants(model: ModelConfig, config: EngineConfig, gpu: Gpu) -> list[Variant]:
    """Variants for an engine of this model and configuration on this GPU, in order of first use.

    Raises:
        InputError: settings that do not fit into this machine's memory.
    """
    config = config.on("cuda", model.mask_block)
    dtype: torch.dtype = getattr(torch, config.dtype)
    check_memory(config, model, dtype, META)
    decoder = without_weights(model, dtype)
    with recorded(gpu) as noted, torch.inference_mode():
        if model.mask_block == 1:
            largest_forward(decoder, config, dtype, META)
            executor(decoder, config)
        else:
            dry.run_dry(decoder, config, dtype, _PAGES, capture_dry)
    return list(noted)


def without_weights(model: ModelConfig, dtype: torch.dtype) -> Decoder:
    """A decoder on the meta device with one layer of each kind after the first."""
    windows = model.windows or (0,) * model.num_layers
    kinds = [(index in model.sparse_layers, window) for index, window in enumerate(windows)]
    layers = [kinds[0], *sorted(set(kinds))]
    kept = frozenset(index for index, (is_sparse, _) in enumerate(layers) if is_sparse)
    windows = tuple(window for _, window in layers)
    few = replace(model, num_layers=len(layers), sparse_layers=kept, windows=windows)
    decoder = shapes_only(few, dtype).eval()
    decoder.set_max_positions(1)
    return decoder


def executor(decoder: Decoder, config: EngineConfig) -> Executor:
    """A warmed-up executor for dry runs."""
    config = config.on("cuda", decoder.config.mask_block)
    dtype = kv_dtype(config, decoder.embedding.dtype)
    pages = allocate(decoder.config, _PAGES, config.block_size, dtype, META)
    forward = Forward(decoder, pages, config.dependent_launch)
    return make_executor(config, forward, _max_model_len(decoder, config), META, capture_dry)


def capture_dry(run: Callable[[], torch.Tensor]) -> tuple[Replay, torch.Tensor]:
    """Stand-in for a CUDA graph capture: run once, and return the result in its own shape."""
    return _nothing, run()


def _nothing() -> None: ...


def _max_model_len(decoder: Decoder, config: EngineConfig) -> int:
    return config.max_model_len or decoder.config.max_position_embeddings
