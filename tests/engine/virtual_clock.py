"""Clocks that know nothing of the machine's pace: runs repeat exactly."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from random import Random


class StepClock:
    """Advances by a fixed time at every reading."""

    name = "steps"

    def __init__(self, tick_ns: int = 1000) -> None:
        self.time_ns = 0
        self.tick_ns = tick_ns

    def now_ns(self) -> int:
        self.time_ns += self.tick_ns
        return self.time_ns

    def perf_counter_origin_ns(self) -> int:
        return self.now_ns() - time.perf_counter_ns()

    def elsewhere(self) -> AbstractContextManager[None]:
        return nullcontext()

    def computing(self, tokens: int) -> None:
        pass

    def between_steps(self) -> None:
        pass

    def wait_until(self, time_ns: int) -> None:
        self.time_ns = max(self.time_ns, time_ns)

    def restart(self) -> None:
        self.time_ns = 0


class UnevenClock(StepClock):
    """A machine that now and then stalls: most readings are near each other, some far apart."""

    def __init__(self, seed: int, tick_ns: int = 1000) -> None:
        super().__init__(tick_ns)
        self._rng = Random(seed)

    def now_ns(self) -> int:
        longest = self._rng.choice((1, self.tick_ns, 2 * self.tick_ns, 30 * self.tick_ns))
        self.time_ns += self._rng.randint(1, longest)
        return self.time_ns
