"""Ctrl-C and SIGTERM: immediate exit with a message and an exit code, without partial output.

An exception could be swallowed or replaced on its way out (by an import in progress, by a callback). Code
with something to save requests exceptions explicitly.
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
    """SIGTERM as an exception."""


def listen() -> None:
    """Install the handlers. Signals ignored on entry (background processes) stay ignored."""
    for number in _ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def ignore() -> None:
    """Ignore both signals, once all work is done."""
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def as_exceptions() -> Iterator[None]:
    """Raise `KeyboardInterrupt` and `Terminated` instead, within the block."""
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
