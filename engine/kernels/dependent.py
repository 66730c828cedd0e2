"""Programmatic dependent launch: a kernel is launched while the one before it in the stream still runs.

Such a kernel first waits for the memory of the one before it, then lets the one behind it be launched. So
launching and the beginning of a kernel overlap, and nothing is read or written early. Every such kernel
waits, and all others begin behind the end of what came before: each has the memory of all before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

MIN_ARCH = 90
"""Least compute capability, times ten."""

_on = False


def dependent_launches() -> bool:
    """Whether small kernels are launched so at present."""
    return _on


@contextmanager
def launching_dependents() -> Iterator[None]:
    """Launch small kernels inside the block so."""
    global _on
    before, _on = _on, True
    try:
        yield
    finally:
        _on = before
