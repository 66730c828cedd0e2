"""Every matrix product of the model: projections, routed experts, router, LM head.

Quantised weights and adapters concern this file and the loader (`engine.models.places`) alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.fp8 import FP8
from engine.kernels.moe import fused_moe
from engine.layers.fp8 import fp8_product
from engine.layers.parameter import weight


def product(x: Tensor, matrix: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    """`[..., inputs] -> [..., outputs]` with a matrix `[outputs, inputs]`, in the dtype of `x`.

    Args:
        scale: `[outputs]` float32, of a matrix in float8.
    """
    return F.linear(x, matrix, bias) if scale is None else fp8_product(x, matrix, scale, bias)


class Projection(nn.Module):
    """One matrix `[outputs, inputs]`, and an optional bias `[outputs]`."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = weight(outputs, inputs, dtype=dtype)
        self.bias = weight(outputs, dtype=dtype) if bias else None
        self.scale: nn.Parameter | None = None
        """`[outputs]` float32, of a matrix in float8."""

    def quantise(self) -> None:
        """Keep the matrix in float8 from now on; its former values are lost."""
        self.scale = weight(self.weight.shape[0], dtype=torch.float32)
        self.weight = weight(*self.weight.shape, dtype=FP8)

    def forward(self, x: Tensor) -> Tensor:
        """`[T, inputs] -> [T, outputs]`."""
        return product(x, self.weight, self.bias, self.scale)


class MergedLinear(Projection):
    """Several matrices with the same input as one product, their rows in order: q, k, v; gate, up.

    Args:
        outputs: rows of each.
    """

    def __init__(self, inputs: int, *outputs: int, bias: bool = False, dtype: torch.dtype) -> None:
        super().__init__(inputs, sum(outputs), bias=bias, dtype=dtype)
        self.outputs = outputs

    def parts(self, merged: Tensor) -> tuple[Tensor, ...]:
        """Views `[outputs[i], ...]` of each matrix in the weight, or of each bias in the bias."""
        return torch.split(merged, list(self.outputs))


class ExpertLinears(nn.Module):
    """The matrices of all routed experts, stacked, for one grouped product each.

    `w13[e]` holds gate rows, then up rows; `w2[e]` is down.

    Args:
        swiglu_limit: above zero for experts as those of gpt-oss, with biases and a clamped SwiGLU.
    """

    def __init__(
        self,
        *,
        hidden: int,
        experts: int,
        intermediate: int,
        swiglu_limit: float = 0.0,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.swiglu_limit = swiglu_limit
        self.b13 = weight(experts, 2 * intermediate, dtype=dtype) if swiglu_limit else None
        self.b2 = weight(experts, hidden, dtype=dtype) if swiglu_limit else None
        self.w13 = weight(experts, 2 * intermediate, hidden, dtype=dtype)
        self.w2 = weight(experts, hidden, intermediate, dtype=dtype)

    def forward(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """`[T, hidden] -> [T, hidden]`: weighted sum of the chosen experts of each token.

        Args:
            weights, ids: `[T, top_k]`, float32 and int32.
        """
        return fused_moe(x, self.w13, self.w2, weights, ids, self.b13, self.b2, self.swiglu_limit)
