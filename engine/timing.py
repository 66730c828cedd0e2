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

    def measured(self) -> tuple[int, bool]:
        """GPU time in ns, and whether it was launch-bound; waits for the end."""
        self._end.synchronize()
        gpu_ns = int(self._begin.elapsed_time(self._end) * 1e6)
        return gpu_ns, gpu_ns <= _LAST_KERNELS * self._launching_ns


class StepTimer:
    """A stop watch for the segments of a step, and for its work on the device."""

    def __init__(self, clock: Clock, device: torch.device) -> None:
        self._clock = clock
        self._marks: list[int] = []
        self._gpu = GpuSpan() if device.type == "cuda" else None
        self.launch_bound = False
        """Of the step whose times were told last: whether the GPU waited for the host to the end."""

    def start(self, now_ns: int) -> None:
        """A step begins."""
        self._marks = [now_ns]
        self.launch_bound = False
        if self._gpu is not None:
            self._gpu.ended = False

    def lap(self) -> None:
        """A segment is over."""
        self._marks.append(self._clock.now_ns())

    def gpu_begin(self) -> None:
        """Between the copies of the inputs and the first work on the device."""
        if self._gpu is not None:
            self._gpu.begin()

    def gpu_end(self) -> None:
        """After the last work on the device has been launched."""
        if self._gpu is not None:
            self._gpu.end()

    def times(self, end_ns: int) -> Times:
        """The step ended at `end_ns`. A segment that was never reached took no time."""
        marks = self._marks
        if len(marks) < _LAPS:
            marks += [end_ns] * (_LAPS - len(marks))
        start, scheduled, prepared, launched, sampled = marks
        gpu_ns = sampled - prepared
        if self._gpu is not None:
            gpu_ns, self.launch_bound = self._gpu.measured() if self._gpu.ended else (0, False)
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
