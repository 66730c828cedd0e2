"""SwiGLU, the gated activation of the MLPs."""

from __future__ import annotations

import torch

from engine.kernels import backend
from engine.kernels.reference import activation as reference


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` for x `[T, 2f]` whose first half is gate and second half up; returns `[T, f]`."""
    if backend.choose(x) == "reference":
        return reference.swiglu(x)
    from engine.kernels.triton import activation

    return activation.swiglu(x)
