"""Rotary position embedding: the frequencies of each scaling rule, and the table of cosines and sines."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Rope:
    """Parameters of the angles; fields after `factor` apply to the scaling rule that uses them."""

    theta: float
    kind: str = "default"
    """A key of `SCALINGS`."""
    factor: float = 1.0
    """Context extension relative to `original_max_positions`."""
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Round the YaRN correction range to whole dimensions."""
    attention_factor: float = 1.0
    """Multiplies cosines and sines, and so the logits of attention by its square."""


def cos_sin_table(rope: Rope, rotary_dim: int, max_positions: int, device: torch.device | str) -> Tensor:
    """Cosines, then sines, of every position: `[max_positions, rotary_dim]` float32.

    Computed in float32 on the CPU, as in training, so that every device has the same values.
    """
    plain = 1.0 / rope.theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
    frequencies = SCALINGS[rope.kind](rope, plain)
    angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
    return (torch.cat((angles.cos(), angles.sin()), dim=1) * rope.attention_factor).to(device)


class RopeTable(nn.Module):
    """Cosines and sines of every position, one tensor for all layers with equal rotation."""

    cos_sin: Tensor
    """`[max_positions, rotary_dim]` float32."""

    def __init__(self, rope: Rope, rotary_dim: int) -> None:
        super().__init__()
        self.rope, self.rotary_dim = rope, rotary_dim

    def compute(self, max_positions: int, device: torch.device | str) -> None:
        """Fill the table for positions below `max_positions`."""
        table = cos_sin_table(self.rope, self.rotary_dim, max_positions, device)
        self.register_buffer("cos_sin", table, persistent=False)


def _default(rope: Rope, frequencies: Tensor) -> Tensor:
    return frequencies


def _linear(rope: Rope, frequencies: Tensor) -> Tensor:
    """Position interpolation: every angle divided by the factor."""
    return frequencies / rope.factor


def _llama3(rope: Rope, frequencies: Tensor) -> Tensor:
    """Llama 3.1: wavelengths shorter than the trained context stay, longer ones are stretched."""
    turns = rope.original_max_positions * frequencies / (2 * math.pi)
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = keep.clamp(0, 1)
    return frequencies * keep + frequencies / rope.factor * (1 - keep)


def _yarn(rope: Rope, frequencies: Tensor) -> Tensor:
    """YaRN (arXiv 2309.00071, section 3.2): a ramp over the dimensions instead of over wavelengths."""
    dim = 2 * len(frequencies)

    def dimension(turns: float) -> float:
        """The dimension with `turns` full turns over the trained context."""
        return (
            dim * math.log(rope.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
        )

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001
    stretch = ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return frequencies * (1 - stretch) + frequencies / rope.factor * stretch


SCALINGS: dict[str, Callable[[Rope, Tensor], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
"""`rope_type` of a config -> scaled frequencies from the plain ones, `[rotary_dim / 2]` float32."""
