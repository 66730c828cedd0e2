"""Traces of single steps for Perfetto."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.traces.perfetto import StepTrace


class Track:
    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self.requests: list[tuple[Any, ...]] = []

    def step(self, start_ns: int, end_ns: int, state: Any, facts: Any, steps: int) -> None:
        self.steps.append((start_ns, end_ns, state, dict(facts), steps))

    def request(self, phases: Any, facts: Any) -> None:
        self.requests.append((phases, facts))


def trace(monkeypatch: pytest.MonkeyPatch, sample: int = 1) -> tuple[StepTrace, Track]:
    track = Track()
    monkeypatch.setattr("blis_py.traces.perfetto.InstanceTrack", lambda writer, name: track)
    writer: Any = SimpleNamespace(window=SimpleNamespace(sample=sample))
    return StepTrace(writer), track


def step(start_ns: int, end_ns: int, **facts: int) -> dict[str, float]:
    return {
        **{"start_ns": start_ns, "end_ns": end_ns, "running": 2, "waiting": 1, "kv_blocks": 9},
        **{"prefill_seqs": 0, "prefill_tokens": 0, "decode_seqs": 2, "decode_kv_tokens": 50},
        **{"schedule_ns": 3, "gpu_ns": 5, **facts},
    }


NEVER = (-1, -1)


def test_each_step_is_a_slice_with_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    found, track = trace(monkeypatch)
    found.step(step(10, 20), NEVER, [4], [])
    found.step(step(20, 30), (21, 29), [], [])
    found.step(step(30, 40), (0, 9), [], [])
    assert [slice_[:3] for slice_ in track.steps] == [
        (10, 20, (2, 1, 9)), (21, 29, (2, 1, 9)), (0, 9, (2, 1, 9))
    ]  # fmt: skip
    assert [(slice_[3]["admitted"], slice_[4]) for slice_ in track.steps] == [(1, 1), (0, 1), (0, 1)]
    assert track.steps[0][3]["decode_kv_tokens"] == 50


@pytest.mark.parametrize(
    ("second", "admitted", "slices"),
    [
        (step(20, 30, decode_kv_tokens=52, kv_blocks=10), [], 1),
        (step(20, 30, prefill_tokens=1), [], 2),
        (step(20, 30), [3], 2),
        (step(20, 30, decode_seqs=3), [], 2),
        (step(20, 30, running=3), [], 2),
        (step(20, 30, waiting=2), [], 2),
    ],
)
def test_of_a_sample_alike_decode_steps_are_one_slice(
    monkeypatch: pytest.MonkeyPatch, second: dict[str, float], admitted: list[int], slices: int
) -> None:
    found, track = trace(monkeypatch, sample=2)
    found.step(step(10, 20), NEVER, [], [])
    found.step(second, NEVER, admitted, [])
    assert len(track.steps) == slices - 1
    found.close()
    assert len(track.steps) == slices
    if slices == 1:
        start, end, state, facts, steps = track.steps[0]
        assert (start, end, state, steps) == (10, 30, (2, 1, 9), 2)
        assert (facts["schedule_ns"], facts["gpu_ns"], facts["decode_kv_tokens"]) == (6, 10, 50)
    found.close()
    assert len(track.steps) == slices


def test_a_step_behind_a_prompt_is_a_slice_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found, track = trace(monkeypatch, sample=2)
    for row in (step(0, 9, prefill_tokens=5), step(9, 10), step(10, 11), step(11, 12)):
        found.step(row, NEVER, [], [])
    found.close()
    assert [slice_[4] for slice_ in track.steps] == [1, 3]


def ended(number: int, **columns: Any) -> dict[str, Any]:
    return {
        **{"number": number, "id": f"r{number}", "arrival_ns": 5, "first_token_ns": 30, "finish_ns": 50},
        **{"prompt_tokens": 7, "output_tokens": 3, "cached_tokens": 2, "preemptions": 1},
        **{"finish_reason": "stop", **columns},
    }


def test_phases_of_a_request_are_between_its_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    found, track = trace(monkeypatch)
    found.step(step(10, 20), NEVER, [0, 1], [])
    found.step(step(35, 40), NEVER, [], [0])
    found.step(step(45, 48), NEVER, [0], [])
    found.request(ended(0))
    found.request(ended(1, first_token_ns=-1, finish_ns=-1))
    found.request(ended(2, arrival_ns=50))
    phases, facts = track.requests[0]
    assert phases == [
        ("queued", 5, 10), ("prefill", 10, 30), ("decode", 30, 35), ("preempted", 35, 45), ("prefill", 45, 50)
    ]  # fmt: skip
    assert facts == {
        **{"request": "r0", "prompt tokens": 7, "output tokens": 3, "cached tokens": 2},
        **{"preemptions": 1, "outcome": "stop"},
    }
    assert track.requests[1][0] == [("queued", 5, 10), ("prefill", 10, 48)]
    assert track.requests[2][0] == [("decode", 30, 50)]


def test_a_request_without_time_is_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    found, track = trace(monkeypatch)
    found.request(ended(0, arrival_ns=0, first_token_ns=-1, finish_ns=0))
    assert track.requests[0][0] == [("queued", 0, 0)]


def test_of_a_sample_every_second_request_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    found, track = trace(monkeypatch, sample=2)
    found.step(step(10, 20), NEVER, [0, 1, 2, 3], [])
    for number in range(4):
        found.request(ended(number))
    assert [facts["request"] for _, facts in track.requests] == ["r0", "r2"]
    assert not found._changes
