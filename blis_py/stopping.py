"""Ctrl-C and SIGTERM: the process ends at once, with a word and its exit code, leaving nothing half-written.

An exception would have to find its way out, and anywhere on it (a library that is being imported, a callback)
it can be swallowed or turned into another. Whoever has something to keep first asks for exceptions.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED, TERMINATED = 130, 143
_ENDS = {signal.SIGINT: (INTERRUPTED, "interrupted"), signal.SIGTERM: (TERMINATED, "terminated")}
_raises = False


class Terminated(BaseException):
    """SIGTERM, where it is an exception."""


def listen() -> None:
    """From now on this process ends so. What it was told to ignore (in the background) it still ignores."""
    for number in _ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def ignore() -> None:
    """All is done; nothing is left to be stopped."""
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def as_exceptions() -> Iterator[None]:
    """In this block they are `KeyboardInterrupt` and `Terminated`."""
    global _raises
    before, _raises = _raises, True
    try:
        yield
    finally:
        _raises = before


def _end(number: int, frame: FrameType | None) -> None:
    code, word = _ENDS[signal.Signals(number)]
    if _raises:
        raise KeyboardInterrupt if code == INTERRUPTED else Terminated
    ignore()
    staging = sys.modules.get("blis_py.outputs.staging")
    if staging is not None:
        staging.abandon()
    start = "\r\x1b[2K" if os.isatty(2) else ""  # in place of a progress bar
    os.write(2, f"{start}{word}\n".encode())
    os._exit(code)
