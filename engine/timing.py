"""Timing of the segments of a step."""

from __future__ import annotations

import time

import torch

from engine.clock import Clock
from engine.steplog import Times

_LAPS = 5
"""Marks: start, and end of schedule, prepare, launch and sample."""
_LAST_KERNELS = 1.1
"""Allowance for the kernels at work when the last one has been launched: a tenth of launching them all."""
_BASE_TRIES = 100
_BASE_WITHIN_NS = 4000
"""Distance allowed between the base event of a timeline and its place."""


class GpuSpan:
    """Device interval between two points of the stream: CUDA events, and the host time between recording
    them.

    GPU time begins at the end of the input copies. A captured graph, or the first kernel, still has to be
    launched at that point, so that much waiting is included. If the GPU still waits for the host near the
    end, the interval is the launch time, however fast the GPU is: the step is launch-bound.
    """

    def __init__(self) -> None:
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._begun_ns = self.launching_ns = 0
        self.ended = False

    def begin(self) -> None:
        """Mark the end of input copies; the work follows."""
        self._begun_ns, self.ended = time.perf_counter_ns(), False
        self._begin.record()

    def end(self) -> None:
        """Record the end, after the last launch."""
        self._end.record()
        self.launching_ns, self.ended = time.perf_counter_ns() - self._begun_ns, True

    def ends(self, timeline: GpuTimeline, origin_ns: int, seen_ns: int) -> tuple[int, int]:
        """Start and end, by the engine's clock, in ns.

        Args:
            origin_ns: the engine's time at which `time.perf_counter_ns` was 0.
            seen_ns: the engine's current time, after the interval.
        """
        return timeline.place(self._begin, self._end, origin_ns + self._begun_ns, seen_ns)

    def measured(self) -> tuple[int, bool]:
        """GPU time in ns, and whether the step was launch-bound; waits for the end."""
        self._end.synchronize()
        gpu_ns = int(self._begin.elapsed_time(self._end) * 1e6)
        return gpu_ns, gpu_ns <= _LAST_KERNELS * self.launching_ns


class GpuTimeline:
    """CUDA events on the engine's clock: GPU time counted from one base event, which the host has waited for.

    From there on each event lies as far behind the one before it as the GPU says, so forwards of one stream
    never overlap, and are off by `_BASE_WITHIN_NS` at most while the two clocks agree. What these drift apart
    is made good as far as causality shows it: no work begins before its launch or ends after the host has
    seen its end.
    """

    def __init__(self) -> None:
        self._last: torch.cuda.Event | None = None
        self._last_ns = 0

    def start(self, clock: Clock) -> None:
        """Place the base event, the first time; of several tries the one that the host bracketed closest."""
        if self._last is not None:
            return
        closest_ns = None
        for _ in range(_BASE_TRIES):
            event, before_ns = torch.cuda.Event(enable_timing=True), clock.now_ns()
            event.record()
            event.synchronize()
            width_ns = clock.now_ns() - before_ns
            if closest_ns is None or width_ns < closest_ns:
                closest_ns = width_ns
                self._last, self._last_ns = event, before_ns + width_ns // 2
            if closest_ns <= 2 * _BASE_WITHIN_NS:
                return

    def place(
        self, begin: torch.cuda.Event, end: torch.cuda.Event, launched_ns: int, seen_ns: int
    ) -> tuple[int, int]:
        """Times of two events: the first launched at `launched_ns`, the second seen at `seen_ns`."""
        assert self._last is not None, "start comes first"
        took_ns = int(begin.elapsed_time(end) * 1e6)
        begin_ns = self._last_ns + int(self._last.elapsed_time(begin) * 1e6)
        begin_ns = max(min(max(begin_ns, launched_ns), seen_ns - took_ns), self._last_ns)
        self._last, self._last_ns = end, begin_ns + took_ns
        return begin_ns, self._last_ns


class WorkerSpan:
    """Counterpart of `GpuSpan` for a worker thread in place of the GPU, which launches for itself."""

    launching_ns = 0

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
    """Timer of a step's segments and of its device work."""

    def __init__(self, clock: Clock, device: torch.device) -> None:
        self._clock = clock
        self.device = device
        self._dirty: list[int] = []
        self._span: GpuSpan | WorkerSpan | None = GpuSpan() if device.type == "cuda" else None
        self.launch_bound = False
        """Whether the last reported step was launch-bound."""
        self.launching_ns = 0
        """Host time of that step from first to last launch, beside the work of a GPU; 0 on the CPU."""

    def start(self, now_ns: int) -> None:
        """Start a step."""
        self._dirty = [now_ns]
        self.launch_bound, self.launching_ns = False, 0
        if self._span is not None:
            self._span.ended = False

    def lap(self) -> None:
        """End a segment."""
        self._dirty.append(self._clock.now_ns())

    def gpu_begin(self) -> None:
        """Mark the point between the input copies and the first device work."""
        if self._span is not None:
            self._span.begin()

    def gpu_end(self) -> None:
        """Mark the point after the last launch of device work."""
        if self._span is not None:
            self._span.end()

    def resume(self) -> None:
        """Mark the start of the wait for the outcome."""

    def arrived(self) -> None:
        """Mark the arrival of the outcome."""

    def times(self, end_ns: int) -> Times:
        """Times of the step, ended at `end_ns`. A segment that was not reached took no time."""
        dirty = self._dirty
        if len(dirty) < _LAPS:
            dirty += [end_ns] * (_LAPS - len(dirty))
        start, scheduled, prepared, launched, sampled = dirty
        gpu_ns = sampled - prepared
        if self._span is not None:
            gpu_ns = self._measured(self._span)
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

    def _measured(self, span: GpuSpan | WorkerSpan) -> int:
        """GPU time of a span in ns; 0 for one that was not reached."""
        if not span.ended:
            return 0
        gpu_ns, self.launch_bound = span.measured()
        self.launching_ns = span.launching_ns
        return gpu_ns


class FlightTimer(StepTimer):
    """Timer of one step of the overlapped loop, during which other steps are planned and finished.

    Its segments therefore do not add up to its duration.
    """

    def __init__(self, clock: Clock, device: torch.device, timeline: GpuTimeline) -> None:
        super().__init__(clock, device)
        self._timeline = timeline
        if device.type == "cuda":
            timeline.start(clock)
        self._span = GpuSpan() if device.type == "cuda" else WorkerSpan()
        self._origin_ns = clock.perf_counter_origin_ns()
        self._resumed_ns = self._seen_ns = -1

    def resume(self) -> None:
        """Resume the step to await its outcome."""
        self._resumed_ns = self._clock.now_ns()

    def arrived(self) -> None:
        """Mark the arrival of the outcome."""
        self._seen_ns = self._clock.now_ns()

    def times(self, end_ns: int) -> Times:
        start, scheduled, prepared, launched = (self._dirty + [end_ns] * _LAPS)[: _LAPS - 1]
        resumed_ns = end_ns if self._resumed_ns < 0 else self._resumed_ns
        seen_ns = end_ns if self._seen_ns < 0 else self._seen_ns
        assert self._span is not None
        gpu_ns = self._measured(self._span)
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
        """Start and end of its device work in ns; -1 without any."""
        assert self._span is not None
        if not self._span.ended or self._seen_ns < 0:
            return -1, -1
        return self._span.ends(self._timeline, self._origin_ns, self._seen_ns)
