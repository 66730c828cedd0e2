"""Differences between engine and simulator, in words."""

from __future__ import annotations

from blis_py.calibrate.composition import Composition
from blis_py.calibrate.parity import Difference, Parity
from blis_py.core.features import FEATURE_NAMES, SELDOM, StepFeatures, further_names
from blis_py.traces.steplog import Numbers, StepLog

_VERBS = {
    "decodes": "decodes",
    "prefills": "computes prompts of",
    "admitted": "admits",
    "preempted": "preempts",
    "committed": "commits blocks of",
}
_MAX_NAMES = 6


def explain(parity: Parity, log: StepLog) -> str:
    """One or two sentences: whether the batches are the same, and if not, where they diverge and how."""
    stopped = ""
    if parity.stopped_at is not None:
        stopped = f" A forward failed in step {parity.stopped_at}; what follows was not compared."
    if parity.first is None:
        return f"the simulator plans the same batch in every step.{stopped}"
    return f"{_place(parity.first.step, log)}: {_what(parity.first, log)}.{stopped}"


def _place(step: int, log: StepLog) -> str:
    if step >= len(log):
        return f"after the engine's last step ({len(log) - 1})"
    at_ms = log.steps["start_ns"][step] / 1e6
    waiting, running = log.steps["waiting"][step], log.steps["running"][step]
    return f"step {step} (at {at_ms:,.3f} ms, {running} running, {waiting} waiting)"


def _what(difference: Difference, log: StepLog) -> str:
    engine, simulator = difference.engine, difference.simulator
    if isinstance(engine, Composition):
        return "the engine has a step, the simulator has nothing left to do"
    if isinstance(simulator, Composition):
        return "the simulator has a further step, the engine had nothing left to do"
    if isinstance(engine, StepFeatures) and isinstance(simulator, StepFeatures):
        names = (*FEATURE_NAMES, *SELDOM, *further_names())
        pairs = zip(names, engine.row(names), simulator.row(names), strict=True)
        unlike = [f"{name} is {mine:,} and {theirs:,}" for name, mine, theirs in pairs if mine != theirs]
        return f"the same requests, but in engine and simulator {', '.join(unlike)}"
    if difference.part == "batch":
        return "the same round, but before it the scheduler was called on one side only"
    assert isinstance(engine, tuple)
    assert isinstance(simulator, tuple)
    if difference.part == "chunks":
        mine, theirs = _numbers(engine), _numbers(simulator)
        return f"prompts advance by {mine} tokens in the engine, by {theirs} in the simulator"
    return _who(_VERBS[difference.part], engine, simulator, log)


def _who(verb: str, engine: Numbers, simulator: Numbers, log: StepLog) -> str:
    if sorted(engine) == sorted(simulator):
        mine, theirs = _names(engine, log), _names(simulator, log)
        return f"the engine {verb} {mine}, the simulator the same requests in another order: {theirs}"
    sides = []
    for side, own, other in (("engine", engine, simulator), ("simulator", simulator, engine)):
        extra = tuple(number for number in own if number not in other)
        if extra:
            sides.append(f"only the {side} {verb} {_names(extra, log)}")
    return ", ".join(sides)


def _names(numbers: Numbers, log: StepLog) -> str:
    known = dict(zip(log.requests["number"], log.requests["id"], strict=True))
    names = [known.get(number, f"number {number}") for number in numbers[:_MAX_NAMES]]
    more = len(numbers) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _numbers(values: Numbers) -> str:
    return ", ".join(map(str, values)) or "none"
