"""SwiGLU and GeGLU, the gated activations of the MLPs."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.kernels.op import op


@op("triton")
def swiglu(x: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` for x `[T, 2f]` whose first half is gate and second half up; returns `[T, f]`."""
    gate, up = x.chunk(2, dim=-1)
    if x.dtype == torch.float32:
        return F.silu(gate).mul_(up)
    return F.silu(gate.float()).mul_(up.float()).to(x.dtype)


@op("triton")
def geglu(x: torch.Tensor) -> torch.Tensor:
    """`gelu(gate) * up` `[T, f]` for x `[T, 2f]` as in `swiglu`; GELU by its tanh approximation (Gemma)."""
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate.float(), approximate="tanh").mul_(up.float()).to(x.dtype)
