"""Promises of a kernel module on its machine code; see `engine.kernels.aot`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promise:
    """Requirements on a kernel's machine code, besides no spills and no excess of shared memory."""

    opcodes: tuple[str, ...] = ()
    """Instructions it must contain on Hopper."""
    max_registers: int = 255
    """Registers per thread."""
