"""Executors for block diffusion without weights or memory, to be run dry; see `engine.variants`."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.diffusion.blocks import Algorithm
from engine.diffusion.build import largest_round, make_executor
from engine.diffusion.executor import DiffusionExecutor
from engine.diffusion.joint_threshold import JointThreshold
from engine.diffusion.low_confidence import LowConfidence
from engine.diffusion.slots import BlockSlots
from engine.graphs import Capture
from engine.kernels import backend
from engine.kv_pool import allocate
from engine.models.decoder import Decoder

META = torch.device("meta")


def run_dry(decoder: Decoder, config: EngineConfig, dtype: torch.dtype, pages: int, capture: Capture) -> None:
    """The largest round, warm-up and graphs under every algorithm that has kernels of its own."""
    largest_round(decoder, config, dtype, META)
    for algorithm in (LowConfidence(), JointThreshold()):
        executor(decoder, config, algorithm, pages, capture)
        with backend.force("triton"):  # where there is no library of CUDA C++ kernels
            executor(decoder, config, algorithm, pages, capture)


def executor(
    decoder: Decoder, config: EngineConfig, algorithm: Algorithm, pages: int, capture: Capture
) -> DiffusionExecutor:
    """An executor to be run dry, warmed up."""
    kv = allocate(decoder.config, pages, config.block_size, decoder.embedding.dtype, META)
    slots = BlockSlots(config.max_num_seqs, decoder.config.mask_block, 0, algorithm, META)
    length = config.max_model_len or decoder.config.max_position_embeddings
    return make_executor(config, decoder, kv, slots, length, capture)
