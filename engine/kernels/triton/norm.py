"""RMSNorm (+ residual): one program per row, which is read once and stays in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.aot import AotCase

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
):
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    inside = dims < D
    values = tl.load(x + row * stride_x + dims, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        values += tl.load(residual + row * stride_r + dims, mask=inside, other=0.0).to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + row * D + dims, rounded, mask=inside)
        # The norm is taken of the stored sum, as it would be without fusion.
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
        )
    if total is None:
        return out.view(x.shape)
    return out.view(x.shape), total.view(x.shape)


def aot_cases() -> list[AotCase]:
    """Hidden sizes of Qwen3-0.6B, LLaDA2-mini and the 8B models."""
    pointers = dict.fromkeys(("x", "residual", "weight", "out", "total"), "*bf16:16")
    scalars = {"stride_x": "i32:16", "stride_r": "i32:16", "eps": "fp32"}
    return [
        AotCase(
            f"rms_norm d{d}{' + residual' * add}",
            _rms_norm,
            pointers | scalars,
            {"D": d, "BLOCK_D": triton.next_power_of_2(d), "ADD": add},
            num_warps=_num_warps(triton.next_power_of_2(d)),
            max_registers=64,
        )
        for d, add in ((1024, False), (2048, True), (4096, True))
    ]
