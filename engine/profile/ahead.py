"""GPU time and host time of a step, each alone: the host launches the step while the stream sleeps.

    stream   sleeping ........................ | forward and sampling |
    host     prepare | launching | waiting ............................ | finish

The GPU begins when everything has been launched, so its time contains no launching, and the host is never
waited for. What a synchronous loop pays follows from both: waiting lasts until the GPU would have been done,
had it not slept.
"""

from __future__ import annotations

import time

import torch

from engine.clock import Clock
from engine.steplog import Times
from engine.timing import GpuSpan, StepTimer

MARGIN = 1.5
"""Sleep in units of the time that launching took before: it varies, and so does the GPU's clock."""
MIN_NS, MAX_NS = 200_000, 60_000_000
_CYCLES = 2_000_000
"""Length of the sleep that shows how long a cycle is."""


class SleepingSpan(GpuSpan):
    """A span that the host launches ahead.

    Attributes:
        sleep_ns: how long the stream sleeps first; 0 = not at all.
        ahead: whether the GPU had begun only when everything had been launched.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asleep = torch.cuda.Event(enable_timing=True)
        self.sleep_ns, self.ahead = 0, False
        self._asleep_ns = 0
        self._cycles_per_ns = _cycles_per_ns()

    def begin(self) -> None:
        if self.sleep_ns:
            self._asleep_ns = time.perf_counter_ns()
            self._asleep.record()
            torch.cuda._sleep(int(self.sleep_ns * self._cycles_per_ns))
        super().begin()

    def end(self) -> None:
        super().end()
        self.ahead = bool(self.sleep_ns) and not self._begin.query()

    def measured(self) -> tuple[int, bool]:
        gpu_ns, launch_bound = super().measured()
        return gpu_ns, launch_bound and not self.ahead

    def spared_ns(self, waiting_ns: int, seen_ns: int) -> int:
        """Time by which the wait for the outcome would have been shorter without sleep.

        The latencies of an idle stream's first kernel and of the host's waking up are in either wait.
        """
        whole_ns = int(self._asleep.elapsed_time(self._end) * 1e6)
        latency_ns = max(seen_ns - self._asleep_ns - whole_ns, 0)
        done_ns = self._begun_ns + int(self._begin.elapsed_time(self._end) * 1e6) + latency_ns
        return seen_ns - max(min(done_ns, seen_ns), waiting_ns)


class AheadTimer(StepTimer):
    """Timer of steps whose host runs ahead of a sleeping stream, as long as `sleep_ns` is set.

    Attributes:
        spared: of each step since it was last emptied, by how much sleeping has lengthened it, in ns.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, torch.device("cuda"))
        self._span: SleepingSpan = SleepingSpan()
        self.spared: list[int] = []
        self._waiting_ns = self._seen_ns = 0

    @property
    def ahead(self) -> bool:
        """Whether the host was ahead of the GPU to the end in the latest step."""
        return self._span.ahead

    @property
    def sleep_ns(self) -> int:
        """Sleep of the stream before a step."""
        return self._span.sleep_ns

    @sleep_ns.setter
    def sleep_ns(self, ns: int) -> None:
        self._span.sleep_ns = ns

    def resume(self) -> None:
        self._waiting_ns = self._seen_ns = time.perf_counter_ns()

    def arrived(self) -> None:
        self._seen_ns = time.perf_counter_ns()

    def times(self, end_ns: int) -> Times:
        times, span = super().times(end_ns), self._span
        slept = span.sleep_ns and span.ended
        self.spared.append(span.spared_ns(self._waiting_ns, self._seen_ns) if slept else 0)
        return times


class Leads:
    """Sleep of the stream before the steps of each composition."""

    def __init__(self) -> None:
        self._ns: dict[object, int] = {}

    def of(self, shape: object) -> int:
        """Sleep in ns; 0 for a composition that has not been launched yet."""
        return self._ns.get(shape, 0)

    def record(self, shape: object, launching_ns: int, ahead: bool) -> None:
        """Launching took so long; where the sleep before it was too short, the next one is twice as long."""
        lead_ns = max(int(MARGIN * launching_ns), MIN_NS)
        if not ahead:
            lead_ns = max(lead_ns, 2 * self.of(shape))
        self._ns[shape] = min(lead_ns, MAX_NS)


def _cycles_per_ns() -> float:
    """Pace of the counter that a sleep counts."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(_CYCLES)
    end.record()
    end.synchronize()
    return _CYCLES / max(begin.elapsed_time(end) * 1e6, 1.0)
