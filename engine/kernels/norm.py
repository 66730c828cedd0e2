"""RMSNorm, optionally fused with the addition of the residual stream."""

from __future__ import annotations

from typing import overload

import torch

from engine.kernels import backend
from engine.kernels.reference import norm as reference

Tensor = torch.Tensor


@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor: ...
@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: None) -> Tensor: ...
@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor) -> tuple[Tensor, Tensor]: ...


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """`weight * x / sqrt(mean(x²) + eps)` over the last dimension, computed in float32.

    x: `[..., d]`; weight: `[d]`. With `residual` (same shape as x) the sum x + residual is normalised, and
    returned beside the norm as the new residual stream: `(y, x + residual)`.
    """
    if backend.choose(x) == "reference":
        return reference.rms_norm(x, weight, eps, residual)
    from engine.kernels.triton import norm

    return norm.rms_norm(x, weight, eps, residual)
