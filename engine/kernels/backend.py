"""Selection of an op's implementation: by the tensors' device, unless `force` overrides it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Literal

import torch

Backend = Literal["reference", "triton", "cuda"]

_STANDING_IN: dict[Backend, tuple[Backend, ...]] = {
    "reference": (),
    "triton": ("triton",),
    "cuda": ("cuda", "triton"),
}
"""Backends in effect under `force`, of which an op takes the first it has; empty = the reference."""
_forced: Backend | None = None


@contextmanager
def force(name: Backend) -> Iterator[None]:
    """Run every op inside the block on one implementation, whatever the device.

    For tests and parity checks. An op that has no CUDA C++ kernel takes its Triton kernel under `"cuda"`,
    and one that has no Triton kernel takes its reference under `"triton"`.

    Raises:
        ValueError: unknown backend.
    """
    if name not in _STANDING_IN:
        raise ValueError(f"unknown kernel backend {name!r}: choose reference, triton or cuda")
    global _forced
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


def choose(tensor: torch.Tensor, kernels: Sequence[Backend]) -> Backend:
    """The implementation for an op that has a reference and these kernels, in order of preference.

    Args:
        tensor: an argument of the op, of any shape; its device counts.

    The reference also runs on CUDA tensors; it is the fallback where kernels are absent or cannot be built.
    """
    if _forced is not None:
        return next((name for name in _STANDING_IN[_forced] if name in kernels), "reference")
    if not tensor.is_cuda:
        return "reference"
    return next((name for name in kernels if name != "cuda" or _library()), "reference")


def _library() -> bool:
    """Whether the CUDA C++ kernels exist or can be built. Looked up by name, like all kernels."""
    return bool(import_module("engine.kernels.cuda.library").available())
