"""RMSNorm, optionally fused with the addition of the residual stream."""

from __future__ import annotations

from typing import overload

import torch
import torch.nn.functional as F

from engine.kernels.op import op

Tensor = torch.Tensor


def normalize(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """RMS-normalise the last dimension of x `[..., d]`; float32, and always a new tensor."""
    wide = None if weight is None else weight.float()
    return F.rms_norm(x.float(), x.shape[-1:], wide, eps)


@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor: ...
@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: None) -> Tensor: ...
@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor) -> tuple[Tensor, Tensor]: ...


@op("triton")
def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """`weight * x / sqrt(mean(x²) + eps)` over the last dimension, computed in float32.

    x: `[..., d]`; weight: `[d]`. With `residual` (same shape as x) the sum x + residual is normalised, and
    returned beside the norm as the new residual stream: `(y, x + residual)`.
    """
    total = x if residual is None else x + residual
    y = normalize(total, weight, eps).to(x.dtype)
    return y if residual is None else (y, total)
