"""Recorded decisions read back as they were, and rules that are switched one by one."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from benchmarks.engines import ours, scenarios
from benchmarks.engines.compare import first_difference
from benchmarks.engines.decisions import Decision, packed, read, unpacked, write
from benchmarks.engines.scenario import StepTrace
from benchmarks.engines.switches import shown, switched
from benchmarks.engines.vllm import config


def test_repetitions_of_a_step_are_a_number() -> None:
    one = StepTrace(tokens={"a": 1}, preempted=[], blocks=3, finished={})
    grown = StepTrace(tokens={"a": 1}, preempted=[], blocks=4, finished={"a": 5})
    idle = StepTrace(tokens={}, preempted=[], blocks=0, finished={})
    trace = [one, one, one, grown, idle, idle, one]
    steps = packed(trace)
    assert steps == [
        {"tokens": {"a": 1}, "blocks": 3},
        2,
        {"blocks": 4, "finished": {"a": 5}},
        {"blocks": 0, "tokens": {"a": 0}},
        1,
        {"tokens": {"a": 1}, "blocks": 3},
    ]
    assert first_difference(unpacked(steps), trace) is None
    assert unpacked(steps) == trace


@pytest.mark.parametrize("asynchronous", [False, True])
def test_decisions_read_back_as_they_were_written(asynchronous: bool, tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    written = []
    for seed in range(6):
        scenario = scenarios.scenario(Random(seed), (0, 33), asynchronous)
        trace = ours.trace(scenario, config(scenario, "0.33"))
        assert not isinstance(trace, dict)
        written.append(Decision(scenario, trace))
    write(path, written)
    assert read(path) == written
    assert path.stat().st_size < len(json.dumps(written)) / 2


def test_a_rule_is_shown_where_the_other_way_differs() -> None:
    scenario = scenarios.scenario(Random(0), (0, 33), False, scenarios.DEFAULTS)
    scenario["ours"] = {"scheduler_reserve_full_isl": True, "watermark": 0.3}
    settings = config(scenario, "0.33")
    assert switched(settings)["scheduler_reserve_full_isl"].scheduler_reserve_full_isl is False
    assert switched(settings)["watermark"].watermark == 0.0
    assert "prefill_schedule_interval" not in switched(settings)
    trace = ours.trace(scenario, settings)
    assert not isinstance(trace, dict)
    names = shown(scenario, trace, settings)
    assert names <= switched(settings).keys()
    for name, other in switched(settings).items():
        assert (first_difference(trace, ours.trace(scenario, other)) is not None) == (name in names)
    assert "self_preemption_ends_step" not in names  # no priorities
