"""Comparison of two traces: the first step that differs, and in what."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.engines.scenario import StepTrace, Trace

FIELDS = ("tokens", "preempted", "cached", "again", "blocks", "finished")
"""Compared in this order."""


class Difference(NamedTuple):
    """The first difference of two traces.

    Attributes:
        step: index of the step; -1 if a scenario did not run to its end.
        kind: in what they differ.
    """

    step: int
    kind: str


def first_difference(engine: Trace, ours: Trace) -> Difference | None:
    """Where a trace of an engine and one of ours part."""
    if isinstance(engine, dict) or isinstance(ours, dict):
        both = (("the engine", engine), ("ours", ours))
        failed = next((name, trace["error"]) for name, trace in both if isinstance(trace, dict))
        return Difference(-1, f"{failed[0]} fails: {failed[1][:80]}")
    for index, (theirs, own) in enumerate(zip(engine, ours, strict=False)):
        for field in FIELDS:
            if theirs.get(field) != own.get(field):
                kind = _kind(theirs, own) if field == "tokens" else field
                return Difference(index, kind)
    if len(engine) != len(ours):
        return Difference(min(len(engine), len(ours)), "number of steps")
    return None


def _kind(engine: StepTrace, ours: StepTrace) -> str:
    more = engine["tokens"].keys() - ours["tokens"].keys()
    less = ours["tokens"].keys() - engine["tokens"].keys()
    if more and less:
        return "tokens: other requests"
    if more or less:
        return f"tokens: {'the engine' if more else 'ours'} runs more requests"
    return "tokens: other counts"
