"""The event loop of servers and clients, and timers finer than a millisecond, which epoll does not have."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = 0o4000 | 0o2000000
_ABSOLUTE = 1


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class _Spec(ctypes.Structure):
    """`struct itimerspec`."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class WallTimer:
    """A timer that calls one function at one time; a Linux timerfd, or elsewhere a timer of the event loop.

    Args:
        call: called in the event loop.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._call = call
        self._handle: asyncio.Handle | None = None
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._fd = -1
        if self._libc is not None:
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._fired)

    def set(self, at_ns: int) -> None:
        """Call at a time of `time.monotonic_ns`, in place of the time set before."""
        if self._fd >= 0:
            assert self._libc is not None
            at_ns = max(at_ns, 1)  # 0 would disarm it
            spec = _Spec(0, 0, at_ns // 10**9, at_ns % 10**9)
            self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None)
            return
        self.cancel()
        self._handle = self._loop.call_later(max(at_ns - time.monotonic_ns(), 0) / 1e9, self._call)

    def cancel(self) -> None:
        """Forget the time that was set."""
        if self._fd >= 0:
            assert self._libc is not None
            self._libc.timerfd_settime(self._fd, 0, ctypes.byref(_Spec(0, 0, 0, 0)), None)
        elif self._handle is not None:
            self._handle.cancel()

    def close(self) -> None:
        """Release the timer."""
        self.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._call()
