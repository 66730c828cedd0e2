"""Where the time of a step goes."""

from __future__ import annotations

import torch

from engine.clock import Clock
from engine.steplog import Times

_LAPS = 5
"""Begin, and end of schedule, prepare, launch and sample."""


class StepTimer:
    """A stop watch for the segments of a step, and CUDA events around its work on the device."""

    def __init__(self, clock: Clock, device: torch.device) -> None:
        self._clock = clock
        self._marks: list[int] = []
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        if device.type == "cuda":
            self._events = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        self._on_gpu = False

    def start(self, now_ns: int) -> None:
        """A step begins."""
        self._marks = [now_ns]
        self._on_gpu = False

    def lap(self) -> None:
        """A segment is over."""
        self._marks.append(self._clock.now_ns())

    def gpu_begin(self) -> None:
        """Before the first work on the device."""
        if self._events is not None:
            self._events[0].record()

    def gpu_end(self) -> None:
        """After the last work on the device has been launched."""
        if self._events is not None:
            self._events[1].record()
            self._on_gpu = True

    def times(self, end_ns: int) -> Times:
        """The step ended at `end_ns`. A segment that was never reached took no time."""
        marks = self._marks
        if len(marks) < _LAPS:
            marks += [end_ns] * (_LAPS - len(marks))
        start, scheduled, prepared, launched, sampled = marks
        gpu_ns = sampled - prepared
        if self._events is not None:
            gpu_ns = self._gpu_ns() if self._on_gpu else 0
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

    def _gpu_ns(self) -> int:
        assert self._events is not None
        begin, end = self._events
        end.synchronize()
        return int(begin.elapsed_time(end) * 1e6)
