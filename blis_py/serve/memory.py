"""Return of freed memory to the system, after work on what a client sends.

The C library keeps freed memory for the next call; behind a large body or grammar that is hundreds of MB.
"""

from __future__ import annotations

from contextlib import suppress
from ctypes import CDLL

LARGE_BYTES = 1 << 22
"""Size of an input from which the memory is returned: it takes tens of milliseconds."""


def return_freed(handled_bytes: int) -> None:
    """Return what is freed behind an input of so many bytes, where the C library can (glibc)."""
    if handled_bytes >= LARGE_BYTES:
        with suppress(AttributeError, OSError):
            CDLL(None).malloc_trim(0)
