"""Bubble, launch lead and host time of recorded runs, and both loops measured beside each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stub_engine import run_all, stub_engine

from blis_py.calibrate.parity import replay_steps
from blis_py.cli import main
from blis_py.traces.samples import samples_of
from blis_py.traces.steplog import StepLog, read_step_log
from engine.clock import WallClock
from engine.pipeline import pipeline, summary
from engine.sampling_params import SamplingParams


def log_of(steps: int, **settings: Any) -> StepLog:
    engine = stub_engine(clock=WallClock(), **settings)
    engine.add_request([1, 2, 3], SamplingParams(temperature=0, max_tokens=steps))
    run_all(engine)
    return engine.recorder.log()


def test_the_bubble_is_the_time_between_forwards_over_that_between_their_beginnings() -> None:
    log = log_of(3, async_scheduling=True)
    log.steps.update(forward_start_ns=[100, 210, 300], forward_end_ns=[200, 300, 390])
    for name in ("schedule_ns", "prepare_ns", "launch_ns"):
        log.steps[name] = [10, 10, 10]
    log.steps["start_ns"] = [0, 50, 300]
    log.steps["end_ns"] = log.requests["finish_ns"] = [390] * 3
    log.requests["enqueue_ns"], log.requests["finish_ns"] = [0], [1000]
    found = pipeline(log)
    assert found.bubble == 10 / 200
    assert found.launch_lead_ns.tolist() == [200 - 80, 300 - 330]
    assert found.run_ahead == 0.5


def test_time_without_requests_is_no_bubble() -> None:
    engine = stub_engine(clock=WallClock(), async_scheduling=True)
    for _ in range(2):
        engine.add_request([1, 2, 3], SamplingParams(temperature=0, max_tokens=1))
        run_all(engine)
        engine.clock.wait_until(engine.clock.now_ns() + 50_000_000)
    found = pipeline(engine.recorder.log())
    assert found.begin_ns[1] - found.end_ns[0] > 40_000_000
    assert (found.bubble, found.busy.tolist()) == (0.0, [False])


def test_a_synchronous_step_is_handed_over_when_the_one_before_it_is_over() -> None:
    found = summary(log_of(20))
    assert found["run_ahead"] == 0.0
    assert found["bubble"] > 0


def test_steps_that_overlap_are_samples_without_the_time_they_waited() -> None:
    log = log_of(20, async_scheduling=True)
    samples = samples_of(log, "run")
    assert (samples["gpu_ns"] == log.column("gpu_ns")).all()
    assert (samples["host_ns"] > 0).all()
    busy_ns = int(log.steps["end_ns"][-1]) - int(log.steps["start_ns"][0])
    assert samples["gpu_ns"].sum() < busy_ns


def test_both_loops_are_measured_beside_each_other(
    model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--num-prompts", "4", "--input-len", "20", "--output-len", "5", "--compare-overlap"]
    assert main(["engine", "bench", "throughput", *model, *sizes]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert list(result) == ["synchronous", "overlapped"]
    assert all(one["pipeline"]["steps"] == 5 for one in result.values())
    assert "bubble: device idle" in err


def test_an_overlapped_run_is_recorded_and_replays(model: list[str], tmp_path: Path) -> None:
    load = ["--num-requests", "8", "--rate", "50", "--prompt-tokens", "30", "--output-tokens", "8"]
    log = tmp_path / "steps.csv"
    how = ["--no-warm-up", "--overlap", "--check-relay", "--step-log", str(log)]
    assert main(["engine", "bench", "replay", *model, *load, *how]) == 0
    recorded = read_step_log(log)
    assert recorded.meta["scheduler"]["async_scheduling"] is True
    assert replay_steps(recorded).share == 1.0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["bench", "throughput", "--compare-overlap", "--overlap"], "--overlap: contradicts"),
        (["bench", "throughput", "--compare-overlap", "--step-log", "x.csv"], "--step-log: contradicts"),
        (["bench", "throughput", "--overlap", "--no-async-scheduling"], "--overlap: contradicts"),
        (["profile", "--async-scheduling"], "--async-scheduling: steps that overlap"),
        (["bench", "throughput", "--async-scheduling", "--clock", "cpu"], "clock: measures one thread"),
    ],
    ids=" ".join,
)
def test_what_contradicts_itself_is_refused(
    model: list[str], arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verb = arguments[: 2 if arguments[0] == "bench" else 1]
    assert main(["engine", *verb, *model, *arguments[len(verb) :]]) == 2
    assert complaint in capsys.readouterr().err
