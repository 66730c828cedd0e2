"""What time it is for the engine. Both clocks begin at 0."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from blis_py.errors import InputError

_SLEEP_IS_LATE_NS = 500_000
"""What a sleep may take longer than asked for; so much is waited for awake."""


class Clock(Protocol):
    """Time since the clock was made."""

    name: str

    def now_ns(self) -> int: ...

    def wait_until(self, time_ns: int) -> None:
        """Nothing to do before `time_ns`; returns at once if it has passed."""
        ...

    def elsewhere(self) -> AbstractContextManager[None]:
        """For work that a client does on a computer of its own: it takes no CPU time of the engine."""
        ...

    def restart(self) -> None:
        """It is 0 again."""
        ...


class WallClock:
    """Real time."""

    name = "wall"

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._origin_ns = time.perf_counter_ns()

    def now_ns(self) -> int:
        return time.perf_counter_ns() - self._origin_ns

    def wait_until(self, time_ns: int) -> None:
        rest_ns = time_ns - self.now_ns()
        if rest_ns > _SLEEP_IS_LATE_NS:
            time.sleep((rest_ns - _SLEEP_IS_LATE_NS) / 1e9)
        while self.now_ns() < time_ns:
            pass

    def elsewhere(self) -> AbstractContextManager[None]:
        return nullcontext()


class CpuClock:
    """CPU time of the calling thread; waiting takes none and moves the clock forward.

    On a machine shared with others this is what the work costs. Meaningful where all of it happens on
    one thread: torch on the CPU with one thread.
    """

    name = "cpu"

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._offset_ns = -time.thread_time_ns()

    def now_ns(self) -> int:
        return time.thread_time_ns() + self._offset_ns

    def wait_until(self, time_ns: int) -> None:
        self._offset_ns += max(time_ns - self.now_ns(), 0)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        began_ns = time.thread_time_ns()
        yield
        self._offset_ns -= time.thread_time_ns() - began_ns


CLOCKS: dict[str, type[WallClock] | type[CpuClock]] = {"wall": WallClock, "cpu": CpuClock}


def make_clock(name: str) -> Clock:
    """A new clock by its name."""
    if name not in CLOCKS:
        raise InputError("unknown clock", key="clock", value=name, fix=f"use one of {', '.join(CLOCKS)}")
    return CLOCKS[name]()
