"""The 8-bit float of weights and of the KV cache: e4m3."""

from __future__ import annotations

import torch
from torch import Tensor

FP8, LARGEST = torch.float8_e4m3fn, 448.0
"""The type, and its largest number."""


def as_fp8(values: Tensor) -> Tensor:
    """Values in float8, those beyond its range at its ends."""
    return values.float().clamp(-LARGEST, LARGEST).to(FP8)
