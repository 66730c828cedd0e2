"""Random weights of a realistic scale, for benchmarks of speed and memory.

Every matrix has standard deviation 1/sqrt(inputs), so that a normalised input gives outputs, router
scores and logits of order one. Matrices that write to the residual stream are smaller by sqrt(2 x layers),
so that it keeps that order through any depth. Embeddings have deviation one, so that tokens stay distinct
through any depth and routers send them different ways; tied to the LM head, they are scaled as its weights,
or every token would predict itself. Norms are one, biases small.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from engine.layers.fp8 import quantised
from engine.models.decoder import Decoder
from engine.models.places import places, scales

CPU_GENERATOR_ELEMENTS = 1 << 28
"""Models up to this size are drawn on the CPU and are equal (up to rounding) on every device; larger ones are
drawn on their device and are equal on the same kind of device only."""

BIAS_STD = 0.02


def fill_random(decoder: Decoder, seed: int) -> None:
    """Fill all weights.

    A tensor's values depend on the seed and its name in a checkpoint, not on the order of filling.
    """
    tensors, scale_of = places(decoder), scales(decoder)
    small = sum(view.numel() for view in tensors.values()) <= CPU_GENERATOR_ELEMENTS
    for name, view in tensors.items():
        std = _std(name, view, decoder)
        if std is None:
            view.fill_(1.0)
            continue
        if name in scale_of:
            _fill_quantised(view, scale_of[name], std, _tensor_seed(seed, name))
            continue
        device = torch.device("cpu") if small else view.device
        generator = torch.Generator(device).manual_seed(_tensor_seed(seed, name))
        if small:
            view.copy_(torch.empty(view.shape).normal_(0.0, std, generator=generator))
        else:
            view.normal_(0.0, std, generator=generator)


def _fill_quantised(view: Tensor, scale: Tensor, std: float, seed: int) -> None:
    """Random values in float8."""
    device = torch.device("cpu") if view.numel() <= CPU_GENERATOR_ELEMENTS else view.device
    generator = torch.Generator(device).manual_seed(seed)
    values = torch.empty(view.shape, device=device).normal_(0.0, std, generator=generator)
    stored, row_scale = quantised(values)
    view.copy_(stored)
    scale.copy_(row_scale.squeeze(1))


def _std(name: str, view: Tensor, decoder: Decoder) -> float | None:
    """Standard deviation of a weight; None for a norm."""
    if name.endswith("norm.weight"):
        return None
    if view.dim() == 1:
        return BIAS_STD
    names, std = decoder.config.names, 1 / math.sqrt(view.shape[1])
    if name == f"{names.embedding}.weight" and not decoder.config.tied_embeddings:
        return 1.0
    if name.endswith((f".{names.out}.weight", f".{names.expert[2]}.weight", ".down_proj.weight")):
        return std / math.sqrt(2 * decoder.config.num_layers)
    return std


def _tensor_seed(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
