"""RMSNorm (+ residual): one program per row, which is read once and stays in registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from engine.kernels.promise import Promise
from engine.kernels.triton.dependent import await_memory, launch_options

Tensor = torch.Tensor


@triton.jit
def _rms_norm(
    x,
    residual,
    weight,
    out,
    total,
    stride_x,
    stride_r,
    eps,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ADD: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    await_memory(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    inside = dims < D
    values = tl.load(x + row * stride_x + dims, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        values += tl.load(residual + row * stride_r + dims, mask=inside, other=0.0).to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + row * D + dims, rounded, mask=inside)
        # The norm is of the stored sum, as it would be without fusion.
        values = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / D + eps)
    gain = tl.load(weight + dims, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * D + dims, (values * scale * gain).to(out.dtype.element_ty), mask=inside)


def _num_warps(block: int) -> int:
    return min(16, max(1, block // 512))


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """See `engine.kernels.norm.rms_norm`."""
    d = x.shape[-1]
    rows = x.reshape(-1, d)
    added = None if residual is None else residual.reshape(-1, d)
    out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    total = None if added is None else torch.empty_like(out)
    if len(rows):
        block = triton.next_power_of_2(d)
        _rms_norm[(len(rows),)](
            rows,
            added,
            weight,
            out,
            total,
            rows.stride(0),
            0 if added is None else added.stride(0),
            eps,
            D=d,
            BLOCK_D=block,
            ADD=added is not None,
            num_warps=_num_warps(block),
            **launch_options(),
        )
    if total is None:
        return out.view(x.shape)
    return out.view(x.shape), total.view(x.shape)


def promise(kernel: str, constants: Mapping[str, Any]) -> Promise:
    """See `engine.kernels.aot`."""
    return Promise(max_registers=64)
