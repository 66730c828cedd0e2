"""Checkpoints that hold the experts of a layer stacked, gate and up rows in turns, in MXFP4 or not (gpt-oss).

They are read as if every expert had tensors of its own, under the names that other checkpoints give them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

BLOCKS, SCALES = "_blocks", "_scales"
"""Ends of the names of the two tensors of a matrix in MXFP4."""
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E8M0_BIAS = 127

Slice = Callable[[Tensor], Tensor]


def members(name: str, experts: int) -> Iterator[tuple[str, Slice]]:
    """Names of the tensors in a stacked one, and where each lies in it; nothing if this is none.

    Stacked matrices are `[experts, inputs, outputs]`, biases `[experts, outputs]`.
    """
    name = name.removesuffix(BLOCKS)
    base, _, last = name.rpartition(".")
    for expert in range(experts if base.endswith(".experts") else 0):
        own = f"{base}.{expert}"
        if last == "gate_up_proj":
            yield f"{own}.gate_proj.weight", partial(_matrix, expert=expert, first=0, step=2)
            yield f"{own}.up_proj.weight", partial(_matrix, expert=expert, first=1, step=2)
        elif last == "gate_up_proj_bias":
            yield f"{own}.gate_proj.bias", partial(_bias, expert=expert, first=0, step=2)
            yield f"{own}.up_proj.bias", partial(_bias, expert=expert, first=1, step=2)
        elif last == "down_proj":
            yield f"{own}.down_proj.weight", partial(_matrix, expert=expert, first=0, step=1)
        elif last == "down_proj_bias":
            yield f"{own}.down_proj.bias", partial(_bias, expert=expert, first=0, step=1)


def _matrix(stacked: Tensor, expert: int, first: int, step: int) -> Tensor:
    """`[outputs, inputs]`."""
    return stacked[expert, :, first::step].t()


def _bias(stacked: Tensor, expert: int, first: int, step: int) -> Tensor:
    """`[outputs]`."""
    return stacked[expert, first::step]


def dequantised_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """Stacked matrices `[E, inputs, outputs]` in bfloat16, which holds every value exactly.

    OCP Microscaling Formats 1.0: 32 values of E2M1 share a scale of E8M0, a power of two.

    Args:
        blocks: `[E, outputs, inputs / 32, 16]` uint8, two values a byte, the first in its lower half.
        scales: `[E, outputs, inputs / 32]` uint8, exponents with a bias of 127.
    """
    values = torch.tensor([*_E2M1, *(-value for value in _E2M1)], dtype=torch.bfloat16)
    pairs = torch.stack((blocks & 0x0F, blocks >> 4), dim=-1).flatten(-2)
    exact = torch.ldexp(values[pairs.int()], (scales.int() - _E8M0_BIAS).unsqueeze(-1))
    return exact.to(torch.bfloat16).flatten(-2).mT
