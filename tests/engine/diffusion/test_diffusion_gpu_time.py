"""What counts as GPU time of a round, on a stand-in for CUDA events."""

from __future__ import annotations

from typing import Any

import pytest
from stub_blocks import StubModel, params, stub_engine

from engine.diffusion.executor import RunningBatch
from engine.diffusion.low_confidence import LowConfidence

Events = list[tuple[str, ...]]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    """Events of spans and forwards, in order."""
    events: Events = []

    class Span:
        ended, launching_ns = False, 5

        def begin(self) -> None:
            events.append(("begin",))

        def end(self) -> None:
            self.ended = True
            events.append(("end",))

        def measured(self) -> tuple[int, bool]:
            return 7, True

    step = RunningBatch._step

    def noting(self: RunningBatch, active: list[int]) -> list[int]:
        flags = step(self, active)
        events.append(("flags there",))
        return flags

    monkeypatch.setattr("engine.diffusion.steplog.GpuSpan", Span)
    monkeypatch.setattr(RunningBatch, "on_cuda", property(lambda self: True))
    monkeypatch.setattr(RunningBatch, "_step", noting)
    return events


class Model(StubModel):
    """Notes its forwards."""

    events: Events

    def __call__(self, *arguments: Any) -> Any:
        self.events.append(("forward",))
        return super().__call__(*arguments)


def test_a_rounds_span_ends_before_the_host_waits_for_it(events: Events) -> None:
    model = Model()
    model.events = events
    engine = stub_engine(LowConfidence(0.0), model=model)
    engine.add_request([], params(20))
    while engine.has_unfinished:
        engine.step()
    unmasking = [("begin",), ("forward",), ("end",), ("flags there",)]
    assert events[:4] == unmasking
    assert events[-3:] == [("begin",), ("forward",), ("end",)], "the round that only writes keys and values"
    log = engine.recorder.log()
    assert set(log.steps["gpu_ns"]) == {7}
    assert set(log.steps["launch_bound"]) == {1}
    assert set(log.steps["launching_ns"]) == {5}
