"""What time it is for the engine. Both clocks begin at 0."""

from __future__ import annotations

import time
from typing import Protocol

from blis_py.errors import InputError


class Clock(Protocol):
    """Time since the clock was made."""

    name: str

    def now_ns(self) -> int: ...

    def wait_until(self, time_ns: int) -> None:
        """Nothing to do before `time_ns`; returns at once if it has passed."""
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
        if rest_ns > 0:
            time.sleep(rest_ns / 1e9)


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


CLOCKS: dict[str, type[WallClock] | type[CpuClock]] = {"wall": WallClock, "cpu": CpuClock}


def make_clock(name: str) -> Clock:
    """A new clock by its name."""
    if name not in CLOCKS:
        raise InputError("unknown clock", key="clock", value=name, fix=f"use one of {', '.join(CLOCKS)}")
    return CLOCKS[name]()
