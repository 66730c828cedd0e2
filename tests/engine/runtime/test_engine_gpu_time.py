"""What counts as GPU time, on a stand-in for a stream: the host's clock and the GPU's are apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stub_engine import stub_engine
from virtual_clock import StepClock

from engine.sampling_params import SamplingParams
from engine.timing import GpuSpan, StepTimer

CUDA = torch.device("cuda")


class Stream:
    """A host that launches, and a GPU that does one thing after another. Times in µs.

    Attributes:
        host_us: what time it is for the host.
        free_us: when the GPU will have done all it has been given.
    """

    def __init__(self) -> None:
        self.host_us = self.free_us = 0.0

    def work(self, launch_us: float, gpu_us: float) -> None:
        """The host is busy launching; then the GPU can begin, if it is free."""
        self.host_us += launch_us
        self.free_us = max(self.free_us, self.host_us) + gpu_us


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    made = Stream()

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            self.at_us = -1.0

        def record(self) -> None:
            self.at_us = max(made.host_us, made.free_us)

        def synchronize(self) -> None:
            made.host_us = max(made.host_us, self.at_us)

        def elapsed_time(self, end: Event) -> float:
            return (end.at_us - self.at_us) / 1e3

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr("engine.timing.time.perf_counter_ns", lambda: int(made.host_us * 1e3))
    return made


def test_copies_before_the_span_are_not_in_it(stream: Stream) -> None:
    span = GpuSpan()
    stream.work(40, 25)  # the inputs
    span.begin()
    stream.work(5, 900)
    span.end()
    assert span.measured() == (900_000, False)


def test_a_step_whose_kernels_are_done_before_the_next_is_launched_is_bound_by_launching(
    stream: Stream,
) -> None:
    span = GpuSpan()
    span.begin()
    for _ in range(100):
        stream.work(10, 2)
    span.end()
    assert span.measured() == (1_002_000, True)


def test_a_step_with_a_backlog_is_not(stream: Stream) -> None:
    """The first kernels wait for the host, the last ones for the GPU."""
    span = GpuSpan()
    span.begin()
    for gpu_us in (2, 2, 2, 400):
        stream.work(10, gpu_us)
    span.end()
    gpu_ns, launch_bound = span.measured()
    assert not launch_bound
    assert gpu_ns == 440_000


def test_a_step_that_broke_before_its_launch_took_no_gpu_time(stream: Stream) -> None:
    timer = StepTimer(StepClock(), CUDA)
    timer.start(0)
    timer.gpu_begin()
    stream.work(5, 100)
    timer.gpu_end()
    assert timer.times(10_000)[-1] == 105_000
    timer.start(20_000)
    assert timer.times(30_000)[-1] == 0
    assert not timer.launch_bound


class RecordingTimer:
    """Stand-in for the timer of an engine that records its calls."""

    def __init__(self, timer: StepTimer, events: list[str]) -> None:
        self._timer, self._events = timer, events
        self.launch_bound = True

    def gpu_begin(self) -> None:
        self._events.append("begin")

    def gpu_end(self) -> None:
        self._events.append("end")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._timer, name)


def test_gpu_time_of_an_engines_step_is_from_behind_the_copies_to_before_the_tokens_are_waited_for() -> None:
    engine, events = stub_engine(), list[str]()

    def noting(owner: Any, name: str, event: str) -> None:
        inner = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            events.append(event)
            return inner(*args, **kwargs)

        setattr(owner, name, call)

    noting(engine.executor, "send", "copies")
    noting(engine.executor.forward, "hidden", "forward")
    noting(engine.sampler, "launch", "sampling")
    noting(engine.executor, "note_tokens", "tokens there")
    engine.timer = RecordingTimer(engine.timer, events)  # type: ignore[assignment]
    engine.add_request([1, 2, 3], SamplingParams(temperature=0, max_tokens=2))
    engine.step()
    assert events == ["copies", "begin", "forward", "sampling", "end", "tokens there"]
    assert engine.recorder.log().steps["launch_bound"] == [1], "what the timer says is in the step log"
