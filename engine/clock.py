"""What time it is for the engine. Every clock begins at 0."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from typing import Any, Protocol

from blis_py.errors import InputError

_SLEEP_IS_LATE_NS = 500_000
"""What a sleep may take longer than asked for; so much is waited for awake."""

_MEASURES = 5
"""Last ones of the yardstick whose median is the pace."""
_YARDSTICK_EVERY = 3
"""The engine works for so many times what the yardstick takes, then it is measured again."""


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

    def between_steps(self) -> None:
        """No step is under way: the clock may look after itself, which takes no time by it."""
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

    def between_steps(self) -> None:
        pass


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

    def between_steps(self) -> None:
        pass


class SteadyClock:
    """CPU time of the calling thread, as if the machine kept an even pace.

    A CPU shared with others takes 10 to 20 % more time for the same work at one moment than at another, in
    CPU time too: caches, memory and hyper-threads are shared. So work that is always the same is done again
    and again beside that of the engine, and the clock goes slower by as much as that took longer. The time
    it takes itself does not count.

    Args:
        yardstick: does the work once and returns the CPU time that took, in ns.
        reference_ns: what it takes at the pace that times are told for.
    """

    name = "steady"

    def __init__(self, yardstick: Callable[[], float], reference_ns: float) -> None:
        self._yardstick, self.reference_ns = yardstick, reference_ns
        self._recent: deque[float] = deque(maxlen=_MEASURES)
        self._measure()
        self.restart()

    def restart(self) -> None:
        self._told_ns, self._since_ns = 0.0, time.thread_time_ns()

    def now_ns(self) -> int:
        return int(self._told_ns + (time.thread_time_ns() - self._since_ns) / self.pace)

    def wait_until(self, time_ns: int) -> None:
        self._told_ns += max(time_ns - self.now_ns(), 0)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        began_ns = time.thread_time_ns()
        yield
        self._since_ns += time.thread_time_ns() - began_ns

    def between_steps(self) -> None:
        spent_ns = time.thread_time_ns() - self._since_ns
        if spent_ns >= _YARDSTICK_EVERY * self._recent[-1]:
            self._told_ns += spent_ns / self.pace
            self._measure()
            self._since_ns = time.thread_time_ns()

    def _measure(self) -> None:
        self._recent.append(self._yardstick())
        self.pace = median(self._recent) / self.reference_ns
        """CPU time that work takes just now, over what it takes at the reference."""


CLOCKS: dict[str, type[WallClock] | type[CpuClock]] = {"wall": WallClock, "cpu": CpuClock}
"""Those that need nothing else."""


def make_clock(name: str) -> Clock:
    """A new clock by its name."""
    if name not in CLOCKS:
        raise InputError("unknown clock", key="clock", value=name, fix=f"use one of {', '.join(CLOCKS)}")
    return CLOCKS[name]()


def clock_facts(clock: Clock) -> dict[str, Any]:
    """What measurements say of the clock they were made by."""
    facts: dict[str, Any] = {"clock": clock.name}
    if isinstance(clock, SteadyClock):
        facts["yardstick_us"] = clock.reference_ns / 1000
    return facts
