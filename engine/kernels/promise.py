"""What a kernel module promises of its machine code; see `engine.kernels.aot`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promise:
    """What must be true of a kernel's machine code, beside no spills and no more memory than there is."""

    opcodes: tuple[str, ...] = ()
    """Instructions it must contain, on Hopper."""
    max_registers: int = 255
    """Per thread."""
