"""8-bit weights: float8 (e4m3) with a scale per output, activations with a scale per token.

Activations are quantised as they come, whatever scale a checkpoint suggests. Products are accumulated in
float32 and scaled behind: the tensor cores do it where there are any, the reference elsewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.fp8 import LARGEST, as_fp8

MULTIPLE = 16
"""Inputs and outputs of a product on tensor cores are multiples of this."""
_MIN = 1e-12


def quantised(values: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of float8 `[..., n]` and their scales `[..., 1]` float32: value = float8 * scale."""
    exact = values.float()
    scale = exact.abs().amax(dim=-1, keepdim=True).clamp_min(_MIN) / LARGEST
    return as_fp8(exact / scale), scale


def dequantised(stored: Tensor, scale: Tensor) -> Tensor:
    """float32 values of a matrix `[outputs, inputs]` in float8.

    Args:
        scale: of the matrix (one number), of each output (`[outputs]` or `[outputs, 1]`), or of each block of
            a grid `[rows, columns]` whose blocks are equal but for the last ones.
    """
    exact, scale = stored.float(), scale.float()
    if scale.numel() == 1:
        return exact * scale.reshape(())
    if scale.numel() == stored.shape[0] and (scale.dim() == 1 or scale.shape[1] == 1):
        return exact * scale.reshape(-1, 1)
    height, width = (block_of(size, blocks) for size, blocks in zip(stored.shape, scale.shape, strict=True))
    spread = scale.repeat_interleave(height, 0).repeat_interleave(width, 1)
    return exact * spread[: stored.shape[0], : stored.shape[1]]


def block_of(size: int, blocks: int) -> int:
    """Side of a block, a power of two where the last block is cut."""
    side = -(-size // blocks)
    return side if size % blocks == 0 else 1 << (side - 1).bit_length()


def fp8_product(x: Tensor, matrix: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """`[..., inputs] -> [..., outputs]` with a matrix `[outputs, inputs]` in float8.

    Args:
        scale: `[outputs]` float32.
    """
    rows, row_scale = quantised(x.reshape(-1, x.shape[-1]))
    product = _reference if x.is_cpu else _on_tensor_cores
    out = product(rows, row_scale, matrix, scale, x.dtype)
    out = out if bias is None else out + bias
    return out.view(*x.shape[:-1], matrix.shape[0])


def _on_tensor_cores(
    rows: Tensor, row_scale: Tensor, matrix: Tensor, scale: Tensor, dtype: torch.dtype
) -> Tensor:
    """Products scaled by row exist in bfloat16 alone."""
    out = torch._scaled_mm(
        rows, matrix.t(), scale_a=row_scale, scale_b=scale.unsqueeze(0), out_dtype=torch.bfloat16
    )
    return out.to(dtype)


def _reference(rows: Tensor, row_scale: Tensor, matrix: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    product = rows.float() @ matrix.float().t()
    return (product * row_scale * scale).to(dtype)
