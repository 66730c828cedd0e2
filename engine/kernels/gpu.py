"""GPU properties that launches depend on."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from blis_py.errors import InputError


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU to launch on, or to compile for."""

    arch: int
    """Compute capability: 90 means 9.0."""
    multiprocessors: int
    shared_bytes: int
    """Shared memory available to one thread block, in bytes."""


_SHARED_KIB = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
"""Shared memory by compute capability: CUDA C++ Programming Guide, table of technical specifications."""
_LEAST_SHARED_KIB = 48
"""Shared memory available on every GPU."""
_HOPPER_MULTIPROCESSORS = 132

HOPPER = Gpu(90, _HOPPER_MULTIPROCESSORS, _SHARED_KIB[90] << 10)
_INTERPRETED = Gpu(90, 3, _SHARED_KIB[90] << 10)
"""The GPU of an interpreter: few multiprocessors, to keep its programs few."""

_pretended = HOPPER


def gpu_of(device: torch.device) -> Gpu:
    """The GPU of a tensor's device; on torch's meta device, the pretended one."""
    if device.type == "cuda":
        return _present(device)
    return _pretended if device.type == "meta" else _INTERPRETED


@functools.cache
def _present(device: torch.device) -> Gpu:
    facts = torch.cuda.get_device_properties(device)
    arch = facts.major * 10 + facts.minor
    return Gpu(arch, facts.multi_processor_count, _SHARED_KIB.get(arch, _LEAST_SHARED_KIB) << 10)


@contextmanager
def pretend(gpu: Gpu) -> Iterator[None]:
    """Make the meta device stand for this GPU inside the block."""
    global _pretended
    before, _pretended = _pretended, gpu
    try:
        yield
    finally:
        _pretended = before


def target(name: str = "") -> Gpu:
    """The GPU with a name like `cuda:90`, as large as an H100 or H200; without a name the one present.

    Raises:
        InputError: no such GPU, or its shared memory is unknown.
    """
    if not name:
        if not torch.cuda.is_available():
            fix = "name what to compile for, as in --target cuda:90"
            raise InputError("there is no CUDA device", key="--target", fix=fix)
        return _present(torch.device("cuda", torch.cuda.current_device()))
    kind, _, arch = name.partition(":")
    if kind != "cuda" or not arch.isdigit() or int(arch) not in _SHARED_KIB:
        fix = f"use one of {', '.join(f'cuda:{known}' for known in _SHARED_KIB)}"
        raise InputError("unknown target", key="--target", value=name, fix=fix)
    return Gpu(int(arch), _HOPPER_MULTIPROCESSORS, _SHARED_KIB[int(arch)] << 10)
