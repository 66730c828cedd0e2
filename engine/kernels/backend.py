"""Which implementation of an op runs: the tensors' device decides, `force` overrides it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Backend = Literal["reference", "triton", "cuda"]

_forced: Backend | None = None


@contextmanager
def force(name: Backend) -> Iterator[None]:
    """Run every op inside the block on one implementation, whatever the device.

    For tests and parity checks. An op that has no CUDA C++ kernel takes its Triton kernel under `"cuda"`,
    and one that has no Triton kernel takes its reference under `"triton"`.
    """
    if name not in ("reference", "triton", "cuda"):
        raise ValueError(f"unknown kernel backend {name!r}: choose reference, triton or cuda")
    global _forced
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


def choose(tensor: torch.Tensor) -> Backend:
    """The implementation for an op with a reference and a Triton kernel."""
    if _forced is not None:
        return "reference" if _forced == "reference" else "triton"
    return "triton" if tensor.is_cuda else "reference"


def choose_cuda(tensor: torch.Tensor) -> Backend:
    """The implementation for an op with a reference and a CUDA C++ kernel.

    The reference also runs on CUDA tensors; it stands in where the kernels cannot be built.
    """
    if _forced is not None:
        return "cuda" if _forced == "cuda" else "reference"
    if not tensor.is_cuda:
        return "reference"
    from engine.kernels.cuda import library

    return "cuda" if library.available() else "reference"
