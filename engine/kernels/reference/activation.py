"""SwiGLU in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """See `engine.kernels.activation.swiglu`."""
    gate, up = x.chunk(2, dim=-1)
    if x.dtype == torch.float32:
        return F.silu(gate).mul_(up)
    return F.silu(gate.float()).mul_(up.float()).to(x.dtype)
