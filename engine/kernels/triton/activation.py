"""SwiGLU and GeGLU: elementwise, a tile of one row per program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from engine.kernels.promise import Promise
from engine.kernels.triton.dependent import await_memory, launch_options

BLOCK = 1024


@triton.jit
def _gated(
    x,
    out,
    stride_x,
    F: tl.constexpr,
    GELU: tl.constexpr,
    BLOCK_F: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    await_memory(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    inside = dims < F
    gate = tl.load(x + row * stride_x + dims, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * stride_x + F + dims, mask=inside, other=0.0).to(tl.float32)
    # GELU by tanh is x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x^3)).
    steep = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if GELU else gate
    tl.store(out + row * F + dims, (gate * tl.sigmoid(steep) * up).to(out.dtype.element_ty), mask=inside)


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """See `engine.kernels.activation.swiglu`."""
    return _launch(x, gelu=False)


def geglu(x: torch.Tensor) -> torch.Tensor:
    """See `engine.kernels.activation.geglu`."""
    return _launch(x, gelu=True)


def _launch(x: torch.Tensor, gelu: bool) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    f = x.shape[-1] // 2
    out = torch.empty(len(rows), f, dtype=x.dtype, device=x.device)
    if len(rows):
        block = min(BLOCK, triton.next_power_of_2(f))
        grid = (len(rows), triton.cdiv(f, block))
        _gated[grid](rows, out, rows.stride(0), F=f, GELU=gelu, BLOCK_F=block, **launch_options())
    return out.view(*x.shape[:-1], f)


def promise(kernel: str, constants: Mapping[str, Any]) -> Promise:
    """See `engine.kernels.aot`."""
    return Promise(max_registers=64)
