"""Where forwards lie on the engine's clock, on a simulated stream with a GPU's launches, waits and clocks."""

from __future__ import annotations

from collections import deque
from random import Random

import numpy as np
import pytest
import torch
from virtual_clock import StepClock

from engine.timing import FlightTimer, GpuTimeline

CUDA = torch.device("cuda")
STEPS = 400
WITHIN_US = 5.0
"""What the timeline promises while the clocks of host and GPU agree."""
ORIGIN_NS = 7_000_000


class Stream:
    """A host that launches, and a GPU that works in order. The time of either is in µs of the host's clock.

    Attributes:
        pace: GPU clock over host clock.
    """

    def __init__(self, seed: int, pace: float = 1.0) -> None:
        self.rng, self.pace = Random(seed), pace
        self.host_us = self.free_us = 0.0

    def reach(self, low_us: float, high_us: float) -> float:
        """When the GPU gets to what the host launches now: the host is busy so long, the GPU maybe longer."""
        self.host_us += self.rng.uniform(low_us, high_us)
        return max(self.host_us - self.rng.uniform(0, low_us), self.free_us)

    def wait(self, until_us: float) -> None:
        """The host sees it a little later, now and then much later."""
        late = self.rng.uniform(2, 40) if self.rng.random() < 0.9 else self.rng.uniform(40, 900)
        self.host_us = max(self.host_us, until_us + late)


@pytest.fixture
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stream:
    made = Stream(*request.param)

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            self.at_us = -1.0

        def record(self) -> None:
            self.at_us = made.free_us = made.reach(1, 4)

        def synchronize(self) -> None:
            if self.at_us > made.host_us or made.rng.random() < 0.5:
                made.wait(self.at_us)

        def elapsed_time(self, end: Event) -> float:
            return float(np.float32((end.at_us - self.at_us) * made.pace / 1e3))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr("engine.timing.time.perf_counter_ns", lambda: int(made.host_us * 1e3))
    return made


class HostClock(StepClock):
    """The engine's clock on the stand-in."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def now_ns(self) -> int:
        return int(self._stream.host_us * 1e3) + ORIGIN_NS


def overlapped(stream: Stream, work_us: float) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of each forward of a run, in µs: where they were placed, and where they were."""
    clock, timeline = HostClock(stream), GpuTimeline()
    flights: deque[tuple[FlightTimer, float, float]] = deque()
    placed, true = [], []
    for number in range(STEPS):
        timer = FlightTimer(clock, CUDA, timeline)
        timer.start(clock.now_ns())
        for _ in range(3):
            timer.lap()
        timer.gpu_begin()
        begin_us = stream.free_us
        end_us = stream.free_us = stream.reach(20, 200) + stream.rng.uniform(0.5, 2) * work_us
        timer.gpu_end()
        flights.append((timer, begin_us, stream.free_us))
        if number and (len(flights) == 2):
            landed, begin_us, end_us = flights.popleft()
            landed.resume()
            stream.wait(end_us)
            landed.arrived()
            placed.append([(at_ns - ORIGIN_NS) / 1e3 for at_ns in landed.forward()])
            true.append([begin_us, end_us])
            stream.host_us += stream.rng.uniform(50, 400)  # the rest of the loop
    return np.array(placed), np.array(true)


EXACT = [(seed, 1.0) for seed in range(20)]
DRIFTING = [(seed, 1 + off) for seed in range(4) for off in (50e-6, -50e-6)]


@pytest.mark.parametrize("stream", EXACT, indirect=True, ids=str)
@pytest.mark.parametrize("work_us", [100.0, 1000.0], ids=["host-bound", "GPU-bound"])
def test_forwards_are_placed_within_5_us_and_in_order(stream: Stream, work_us: float) -> None:
    """However late the host sees an end: a forward begins after the end of the one before it."""
    placed, true = overlapped(stream, work_us)
    assert (placed[1:, 0] >= placed[:-1, 1]).all()
    assert np.abs(placed - true).max() <= WITHIN_US


@pytest.mark.parametrize("stream", DRIFTING, indirect=True, ids=str)
@pytest.mark.parametrize("work_us", [100.0, 1000.0], ids=["host-bound", "GPU-bound"])
def test_clocks_that_drift_apart_change_no_order_and_cost_no_more_than_their_drift(
    stream: Stream, work_us: float
) -> None:
    placed, true = overlapped(stream, work_us)
    assert (placed[1:, 0] >= placed[:-1, 1]).all()
    drift_us = abs(stream.pace - 1) * true[:, 1:]
    assert (np.abs(placed - true) <= WITHIN_US + drift_us).all()


@pytest.mark.parametrize("stream", [(0, 1.0)], indirect=True, ids=str)
def test_an_hour_of_forwards_is_not_lost_to_the_precision_of_events(stream: Stream) -> None:
    """CUDA tells the time between two events in single precision: of an hour, half a millisecond is lost."""
    timeline, clock = GpuTimeline(), HostClock(stream)
    timeline.start(clock)
    for _ in range(200):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        stream.host_us += 18e6
        begin.record()
        launched_us = stream.host_us - 4
        stream.free_us += 1000
        end.record()
        end.synchronize()
        begin_ns, _ = timeline.place(begin, end, int(launched_us * 1e3) + ORIGIN_NS, clock.now_ns())
        assert abs((begin_ns - ORIGIN_NS) / 1e3 - begin.at_us) <= 40  # type: ignore[attr-defined]
