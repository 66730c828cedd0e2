"""Weights of an engine that only infers."""

from __future__ import annotations

import torch
from torch import nn


def weight(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """An uninitialised weight, never trained."""
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
