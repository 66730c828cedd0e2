"""A device that is lost for this process: after some errors every CUDA call of the process fails."""

from __future__ import annotations

_STICKY = (
    "illegal memory access",
    "unspecified launch failure",
    "device-side assert",
    "misaligned address",
    "illegal instruction",
    "illegal address",
    "invalid program counter",
    "invalid address space",
    "hardware stack error",
    "uncorrectable",
    "the launch timed out",
    "device is lost",
    "unrecoverable",
    "has fallen off the bus",
    "context is destroyed",
    "driver shutting down",
    "device(s) is/are busy or unavailable",
)


def is_lost(error: BaseException) -> bool:
    """Whether an error, or what caused it, says that the process has lost its device.

    Out of memory and wrong arguments of a launch are errors of one call, and no such.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        text = str(cause).lower()
        if "cuda" in text and any(kind in text for kind in _STICKY):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
