"""Engines of every kind of requests, and what is done otherwise for those that are not autoregressive."""

from __future__ import annotations

from pathlib import Path

import torch

from blis_py.errors import InputError
from engine.config import EngineConfig
from engine.diffusion.engine import DiffusionEngine, DiffusionOutput
from engine.emission import StepOutput
from engine.engine import LLMEngine
from engine.graphs import Capture
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder

Engine = LLMEngine | DiffusionEngine
EngineInBlocks = DiffusionEngine
"""Its answers come in blocks, each settled over several forwards."""
Output = StepOutput | DiffusionOutput


def require_autoregressive(architecture: ModelConfig, model: str) -> None:
    """
    Raises:
        InputError: the model is of another kind.
    """
    if architecture.mask_block != 1:
        fix = "use an autoregressive model"
        raise InputError("is a block-diffusion model, not served yet", key="model", value=model, fix=fix)


def mask_token(model: str | Path) -> int:
    """Id of the mask token of a model whose answers come in blocks."""
    from engine.diffusion import settings

    return settings.mask_token(model)


def run_dry(decoder: Decoder, config: EngineConfig, dtype: torch.dtype, pages: int, capture: Capture) -> None:
    """Runs dry what an engine launches whose answers come in blocks; see `engine.variants`."""
    from engine.diffusion import dry

    dry.run_dry(decoder, config, dtype, pages, capture)
