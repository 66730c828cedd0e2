"""SwiGLU: elementwise, a tile of one row per program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from engine.kernels.promise import Promise

BLOCK = 1024


@triton.jit
def _swiglu(x, out, stride_x, F: tl.constexpr, BLOCK_F: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    inside = dims < F
    gate = tl.load(x + row * stride_x + dims, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * stride_x + F + dims, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * F + dims, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """See `engine.kernels.activation.swiglu`."""
    rows = x.reshape(-1, x.shape[-1])
    f = x.shape[-1] // 2
    out = torch.empty(len(rows), f, dtype=x.dtype, device=x.device)
    if len(rows):
        block = min(BLOCK, triton.next_power_of_2(f))
        _swiglu[(len(rows), triton.cdiv(f, block))](rows, out, rows.stride(0), F=f, BLOCK_F=block)
    return out.view(*x.shape[:-1], f)


def promise(kernel: str, constants: Mapping[str, Any]) -> Promise:
    """See `engine.kernels.aot`."""
    return Promise(max_registers=64)
