"""Clocks of the engine. Every clock starts at 0."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from typing import Any, Protocol

from blis_py.errors import InputError

_SLEEP_IS_LATE_NS = 500_000
"""Possible oversleep of a sleep; this last part of a wait is spun."""

_MEASURES = (5, 3)
"""Number of recent yardstick measurements of each kind whose median is the current pace."""
_YARDSTICK_EVERY = 2
"""Engine work between yardstick measurements, in multiples of the smaller yardstick work."""


class Clock(Protocol):
    """Time since the clock was made."""

    name: str

    def now_ns(self) -> int: ...

    def perf_counter_origin_ns(self) -> int:
        """The clock's time, at its present pace, when `time.perf_counter_ns` was 0."""
        ...

    def wait_until(self, time_ns: int) -> None:
        """Idle until `time_ns`; returns at once if it has passed."""
        ...

    def elsewhere(self) -> AbstractContextManager[None]:
        """Exclude client-side work, which would run on another machine, from the engine's CPU time."""
        ...

    def computing(self, tokens: int) -> None:
        """Notify the clock of a forward over `tokens` tokens; takes no time on the clock."""
        ...

    def between_steps(self) -> None:
        """Let the clock maintain itself between steps; takes no time on the clock."""
        ...

    def restart(self) -> None:
        """Restart at 0."""
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

    def perf_counter_origin_ns(self) -> int:
        # Two readings of the clock would differ by what interrupts the thread between them.
        return -self._origin_ns

    def wait_until(self, time_ns: int) -> None:
        rest_ns = time_ns - self.now_ns()
        if rest_ns > _SLEEP_IS_LATE_NS:
            time.sleep((rest_ns - _SLEEP_IS_LATE_NS) / 1e9)
        while self.now_ns() < time_ns:
            pass

    def elsewhere(self) -> AbstractContextManager[None]:
        return nullcontext()

    def computing(self, tokens: int) -> None:
        pass

    def between_steps(self) -> None:
        pass


class CpuClock:
    """CPU time of the calling thread; waiting takes none and moves the clock forward.

    On a shared machine this is the cost of the work itself. Meaningful where all of it happens on one thread:
    torch on the CPU with one thread.
    """

    name = "cpu"

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._offset_ns = -time.thread_time_ns()

    def now_ns(self) -> int:
        return time.thread_time_ns() + self._offset_ns

    def perf_counter_origin_ns(self) -> int:
        return self.now_ns() - time.perf_counter_ns()

    def wait_until(self, time_ns: int) -> None:
        self._offset_ns += max(time_ns - self.now_ns(), 0)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        began_ns = time.thread_time_ns()
        yield
        self._offset_ns -= time.thread_time_ns() - began_ns

    def computing(self, tokens: int) -> None:
        pass

    def between_steps(self) -> None:
        pass


class SteadyClock:
    """CPU time of the calling thread, normalised to a constant machine speed.

    On a shared CPU the same work takes 10 to 20 % more CPU time at some moments than at others: caches,
    memory and hyper-threads are shared, and vector units may be clocked down. A constant piece of work (the
    yardstick) is therefore timed repeatedly between steps, and the clock is slowed by the same ratio. The
    yardstick's own time does not count.

    Compute-bound and memory-bound work are slowed differently, so there are two yardsticks, steps over few
    tokens and over many; the pace of a step is interpolated by its number of tokens.

    Args:
        yardstick: runs one of the two works; returns its index (0, 1) and its CPU time in ns.
        tokens: computed by each, ascending.
        reference_ns: time of each at the reference pace.
    """

    name = "steady"

    def __init__(
        self,
        yardstick: Callable[[], tuple[int, float]],
        tokens: tuple[int, int],
        reference_ns: tuple[float, float],
    ) -> None:
        self._yardstick, self._tokens, self.reference_ns = yardstick, tokens, reference_ns
        self._recent = tuple(deque[float](maxlen=count) for count in _MEASURES)
        self._typical_ns = [0.0, 0.0]
        while not all(self._recent):
            self._measure()
        self._go_on(0)
        self.restart()

    def restart(self) -> None:
        self._elapsed_ns, self._worked_ns, self._since_ns = 0.0, 0, time.thread_time_ns()

    def now_ns(self) -> int:
        return int(self._elapsed_ns + (time.thread_time_ns() - self._since_ns) / self.pace)

    def perf_counter_origin_ns(self) -> int:
        return self.now_ns() - time.perf_counter_ns()

    def wait_until(self, time_ns: int) -> None:
        self._elapsed_ns += max(time_ns - self.now_ns(), 0)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        began_ns = time.thread_time_ns()
        yield
        self._since_ns += time.thread_time_ns() - began_ns

    def computing(self, tokens: int) -> None:
        self._accumulate()
        self._go_on(tokens)

    def between_steps(self) -> None:
        self._accumulate()
        if self._worked_ns >= _YARDSTICK_EVERY * self._typical_ns[0]:
            self._measure()
            self._worked_ns = 0
        self._go_on(0)

    def _accumulate(self) -> None:
        spent_ns = time.thread_time_ns() - self._since_ns
        self._elapsed_ns += spent_ns / self.pace
        self._worked_ns += spent_ns

    def _go_on(self, tokens: int) -> None:
        """Continue at the pace of a step over `tokens` tokens."""
        few, many = self._tokens
        share = min(max((tokens - few) / (many - few), 0.0), 1.0)
        (now_few, now_many), (few_ns, many_ns) = self._typical_ns, self.reference_ns
        self.pace = (now_few + share * (now_many - now_few)) / (few_ns + share * (many_ns - few_ns))
        """Ratio of the current CPU time of work to its reference."""
        self._since_ns = time.thread_time_ns()

    def _measure(self) -> None:
        which, spent_ns = self._yardstick()
        self._recent[which].append(spent_ns)
        self._typical_ns[which] = median(self._recent[which])


CLOCKS: dict[str, type[WallClock] | type[CpuClock]] = {"wall": WallClock, "cpu": CpuClock}
"""Clocks without further dependencies."""


def make_clock(name: str) -> Clock:
    """A new clock by its name.

    Raises:
        InputError: unknown name.
    """
    if name not in CLOCKS:
        raise InputError("unknown clock", key="clock", value=name, fix=f"use one of {', '.join(CLOCKS)}")
    return CLOCKS[name]()


def clock_facts(clock: Clock) -> dict[str, Any]:
    """Metadata on the clock used for measurements."""
    facts: dict[str, Any] = {"clock": clock.name}
    if isinstance(clock, SteadyClock):
        facts["yardstick_us"] = [spent_ns / 1000 for spent_ns in clock.reference_ns]
    return facts
