"""RMSNorm in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def normalize(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """RMS-normalise the last dimension of x; float32, and always a new tensor."""
    wide = None if weight is None else weight.float()
    return F.rms_norm(x.float(), x.shape[-1:], wide, eps)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """See `engine.kernels.norm.rms_norm`."""
    total = x if residual is None else x + residual
    y = normalize(total, weight, eps).to(x.dtype)
    return y if residual is None else (y, total)
