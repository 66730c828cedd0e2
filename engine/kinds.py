"""Engines of every kind of requests, and what is done otherwise for those that are not autoregressive."""

from __future__ import annotations

from blis_py.errors import InputError
from engine.diffusion.engine import DiffusionEngine, DiffusionOutput
from engine.emission import StepOutput
from engine.engine import LLMEngine
from engine.models.config import ModelConfig

Engine = LLMEngine | DiffusionEngine
EngineInBlocks = DiffusionEngine
"""Engine whose answers come in blocks, each settled over several forwards."""
Output = StepOutput | DiffusionOutput


def require_autoregressive(architecture: ModelConfig, model: str) -> None:
    """
    Raises:
        InputError: the model is of another kind.
    """
    if architecture.mask_block != 1:
        fix = "use an autoregressive model"
        raise InputError("is a block-diffusion model, not served yet", key="model", value=model, fix=fix)
