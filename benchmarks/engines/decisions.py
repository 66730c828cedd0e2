"""Recorded decisions of an engine: scenarios and its traces, in few bytes.

A step is written as its changes against a plain repetition of the step before: the same tokens, the same
blocks, and nothing else. Repetitions in a row are their number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, cast

from benchmarks.engines.scenario import RequestSpec, Scenario, StepTrace

_NOTHING: StepTrace = {"tokens": {}, "blocks": 0}
_REQUEST_DEFAULTS: dict[str, Any] = {"shared_tokens": 0, "priority": 0, "max_tokens": 0}


class Decision(NamedTuple):
    """A scenario, and what an engine's own scheduler decided in it."""

    scenario: Scenario
    trace: list[StepTrace]


def packed(trace: Iterable[StepTrace]) -> list[Any]:
    """A trace as changes from step to step, and numbers of steps without any."""
    steps: list[Any] = []
    before = _NOTHING
    for step in trace:
        changes: dict[str, Any] = {key: value for key, value in step.items() if value and key not in _NOTHING}
        if step["blocks"] != before["blocks"]:
            changes["blocks"] = step["blocks"]
        tokens = _changed(before["tokens"], step["tokens"])
        if tokens:
            changes["tokens"] = tokens
        if not changes and steps and isinstance(steps[-1], int):
            steps[-1] += 1
        else:
            steps.append(changes or 1)
        before = step
    return steps


def _changed(before: dict[str, int], tokens: dict[str, int]) -> dict[str, int]:
    """Tokens that are others than before; 0 of a request that computes no more."""
    gone = dict.fromkeys(before.keys() - tokens.keys(), 0)
    return {**{name: count for name, count in tokens.items() if before.get(name) != count}, **gone}


def unpacked(steps: Iterable[Any]) -> list[StepTrace]:
    """The trace that was packed."""
    trace: list[StepTrace] = []
    before = _NOTHING
    for step in steps:
        for _ in range(step if isinstance(step, int) else 1):
            changes: dict[str, Any] = {} if isinstance(step, int) else dict(step)
            tokens = {**before["tokens"], **changes.pop("tokens", {})}
            made = {
                "tokens": {name: count for name, count in tokens.items() if count},
                "preempted": [],
                "blocks": before["blocks"],
                "finished": {},
                **changes,
            }
            before = cast(StepTrace, made)
            trace.append(before)
    return trace


def write(path: Path, decisions: Iterable[Decision]) -> None:
    """Write decisions of a release, a line each."""
    lines = [
        json.dumps({"scenario": _brief(each.scenario), "steps": packed(each.trace)}, separators=(",", ":"))
        for each in decisions
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(path: Path) -> list[Decision]:
    """The decisions in a file."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Decision(_in_full(row["scenario"]), unpacked(row["steps"])) for row in rows]


def _brief(scenario: Scenario) -> dict[str, Any]:
    requests = [
        {key: value for key, value in request.items() if _REQUEST_DEFAULTS.get(key, request) != value}
        for request in scenario["requests"]
    ]
    return {**scenario, "requests": requests}


def _in_full(scenario: dict[str, Any]) -> Scenario:
    requests = [cast(RequestSpec, {**_REQUEST_DEFAULTS, **request}) for request in scenario["requests"]]
    return cast(Scenario, {**scenario, "requests": requests})
