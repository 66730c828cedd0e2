"""The 8-bit float of weights and of the KV cache: e4m3."""

from __future__ import annotations

import torch
from torch import Tensor

FP8, LARGEST = torch.float8_e4m3fn, 448.0
"""The type, and its largest number."""


def as_fp8(values: Tensor) -> Tensor:
    """Values of any shape in float8, clamped to its range."""
    return values.float().clamp(-LARGEST, LARGEST).to(FP8)
