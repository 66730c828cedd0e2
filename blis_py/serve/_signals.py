"""SIGINT and SIGTERM of a server: to the event loop, and the process's end if that does not turn any more."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from threading import Thread, Timer

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LAST_S = 5.0
"""Time for the rest of a stop, beyond the time that open responses have."""


class StopSignals:
    """Receiver of the signals in a thread of its own, in place of the process's handlers until `close`.

    Args:
        stop: called in the thread for each signal.
        grace_s: time after the first one at which the process ends whatever it is doing, plus a few seconds.
    """

    def __init__(self, stop: Callable[[], object], grace_s: float) -> None:
        self._stop, self._within_s = stop, grace_s + _LAST_S
        self._timer: Timer | None = None
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._former = {number: signal.signal(number, _noted) for number in _SIGNALS}
        self._former_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        Thread(target=self._wait, name="signals", daemon=True).start()

    def _wait(self) -> None:
        while numbers := self._read.recv(64):
            for number in numbers:
                if number in _SIGNALS:
                    self._begin(number)
                    self._stop()

    def _begin(self, number: int) -> None:
        if self._timer is None:
            self._timer = Timer(self._within_s, os._exit, (128 + number,))
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """Return the signals to the process, and let it live."""
        signal.set_wakeup_fd(self._former_fd)
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._write.close()
        if self._timer is not None:
            self._timer.cancel()


def _noted(number: int, frame: object) -> None:
    """The descriptor has the number already."""
