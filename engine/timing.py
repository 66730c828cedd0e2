"""Where the time of a step goes."""

from __future__ import annotations

import time

import torch

from engine.clock import Clock
from engine.steplog import Times

_LAPS = 5
"""Begin, and end of schedule, prepare, launch and sample."""
_LAST_KERNELS = 1.1
"""What the GPU works on when the last kernel has been launched may take a tenth of launching them all."""


class GpuSpan:
    """From one place of the stream to another: CUDA events, and the host's time from noting one to the other.

    GPU time begins where the copies of the inputs end. A captured graph, or the first kernel, has to be
    launched yet at that point: the GPU waits for that much. Where it still waits for the host towards the
    end, the span is that of launching, however fast the GPU is: then it is launch-bound.
    """

    def __init__(self) -> None:
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._begun_ns = self._launching_ns = 0
        self.ended = False

    def begin(self) -> None:
        """The inputs are on their way; what comes next is the work."""
        self._begin.record()
        self._begun_ns, self.ended = time.perf_counter_ns(), False

    def end(self) -> None:
        """The last work has been launched."""
        self._end.record()
        self._launching_ns, self.ended = time.perf_counter_ns() - self._begun_ns, True

    def ends(self, timeline: GpuTimeline, origin_ns: int, seen_ns: int) -> tuple[int, int]:
        """When it began and ended, by the engine's clock.

        Args:
            origin_ns: what that clock showed when `time.perf_counter_ns` showed 0.
            seen_ns: what it shows now that the span is over.
        """
        return timeline.place(self._begin, self._end, origin_ns + self._begun_ns, seen_ns)

    def measured(self) -> tuple[int, bool]:
        """GPU time in ns, and whether it was launch-bound; waits for the end."""
        self._end.synchronize()
        gpu_ns = int(self._begin.elapsed_time(self._end) * 1e6)
        return gpu_ns, gpu_ns <= _LAST_KERNELS * self._launching_ns


class GpuTimeline:
    """Where CUDA events lie on the engine's clock: so far behind the end of the step before.

    The two clocks may drift apart, but no work can begin before it was launched, nor end after the host has
    seen it to be over.
    """

    def __init__(self) -> None:
        self._anchor: torch.cuda.Event | None = None
        self._anchor_ns = 0

    def place(
        self, begin: torch.cuda.Event, end: torch.cuda.Event, launched_ns: int, seen_ns: int
    ) -> tuple[int, int]:
        """Times of two events: the first launched at `launched_ns`, the second seen at `seen_ns`."""
        took_ns = int(begin.elapsed_time(end) * 1e6)
        end_ns = seen_ns
        if self._anchor is not None:
            end_ns = self._anchor_ns + int(self._anchor.elapsed_time(end) * 1e6)
        end_ns = min(max(end_ns, launched_ns + took_ns), seen_ns)
        self._anchor, self._anchor_ns = end, end_ns
        return end_ns - took_ns, end_ns


class WorkerSpan:
    """The same for a worker thread that stands in for the GPU."""

    def __init__(self) -> None:
        self._begin_ns = self._end_ns = 0
        self.ended = False

    def begin(self) -> None:
        self._begin_ns = time.perf_counter_ns()

    def end(self) -> None:
        self._end_ns, self.ended = time.perf_counter_ns(), True

    def ends(self, timeline: GpuTimeline, origin_ns: int, seen_ns: int) -> tuple[int, int]:
        return origin_ns + self._begin_ns, origin_ns + self._end_ns

    def measured(self) -> tuple[int, bool]:
        return self._end_ns - self._begin_ns, False


class StepTimer:
    """A stop watch for the segments of a step, and for its work on the device."""

    def __init__(self, clock: Clock, device: torch.device) -> None:
        self._clock = clock
        self._device = device
        self._marks: list[int] = []
        self._span: GpuSpan | WorkerSpan | None = GpuSpan() if device.type == "cuda" else None
        self.launch_bound = False
        """Of the step whose times were told last: whether the GPU waited for the host to the end."""

    def start(self, now_ns: int) -> None:
        """A step begins."""
        self._marks = [now_ns]
        self.launch_bound = False
        if self._span is not None:
            self._span.ended = False

    def lap(self) -> None:
        """A segment is over."""
        self._marks.append(self._clock.now_ns())

    def gpu_begin(self) -> None:
        """Between the copies of the inputs and the first work on the device."""
        if self._span is not None:
            self._span.begin()

    def gpu_end(self) -> None:
        """After the last work on the device has been launched."""
        if self._span is not None:
            self._span.end()

    def times(self, end_ns: int) -> Times:
        """The step ended at `end_ns`. A segment that was never reached took no time."""
        marks = self._marks
        if len(marks) < _LAPS:
            marks += [end_ns] * (_LAPS - len(marks))
        start, scheduled, prepared, launched, sampled = marks
        gpu_ns = sampled - prepared
        if self._span is not None:
            gpu_ns, self.launch_bound = self._span.measured() if self._span.ended else (0, False)
        return (
            start,
            end_ns,
            scheduled - start,
            prepared - scheduled,
            launched - prepared,
            sampled - launched,
            end_ns - sampled,
            gpu_ns,
        )


class FlightTimer(StepTimer):
    """Of one step of the overlapped loop: other steps are planned and finished while it runs.

    So its segments do not fill the time from its start to its end.
    """

    def __init__(self, clock: Clock, device: torch.device, timeline: GpuTimeline) -> None:
        super().__init__(clock, device)
        self._timeline = timeline
        self._span = GpuSpan() if device.type == "cuda" else WorkerSpan()
        self._origin_ns = clock.now_ns() - time.perf_counter_ns()
        self._resumed_ns = self._seen_ns = -1

    def resume(self) -> None:
        """The host comes back to the step, to wait for what came of it."""
        self._resumed_ns = self._clock.now_ns()

    def arrived(self) -> None:
        """It is there."""
        self._seen_ns = self._clock.now_ns()

    def times(self, end_ns: int) -> Times:
        start, scheduled, prepared, launched = (self._marks + [end_ns] * _LAPS)[: _LAPS - 1]
        resumed_ns = end_ns if self._resumed_ns < 0 else self._resumed_ns
        seen_ns = end_ns if self._seen_ns < 0 else self._seen_ns
        assert self._span is not None
        gpu_ns, self.launch_bound = self._span.measured() if self._span.ended else (0, False)
        return (
            start,
            end_ns,
            scheduled - start,
            prepared - scheduled,
            launched - prepared,
            seen_ns - resumed_ns,
            end_ns - seen_ns,
            gpu_ns,
        )

    def forward(self) -> tuple[int, int]:
        """When its work on the device began and ended; -1 if it never did."""
        assert self._span is not None
        if not self._span.ended or self._seen_ns < 0:
            return -1, -1
        return self._span.ends(self._timeline, self._origin_ns, self._seen_ns)
