"""Parity: whether the simulator forms the same batches as the engine.

The arrivals and step times of a recorded run are passed to a simulated instance. Its scheduler then has the
inputs of the engine's scheduler, at the same step boundaries, and must plan the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from blis_py.calibrate._playbacks import measured, predicted
from blis_py.calibrate.composition import Composition
from blis_py.calibrate.kinds import Blocks, recorded_composition
from blis_py.calibrate.recorded import Lengths
from blis_py.core.config import SchedulerConfig
from blis_py.latency.base import LatencyModel
from blis_py.traces.steplog import StepLog


@dataclass(frozen=True, slots=True)
class Difference:
    """A step that the simulator planned differently."""

    step: int
    part: str
    """The first differing part of the `Composition`; `steps` if one side has no such step."""
    engine: object
    simulator: object


@dataclass(frozen=True, slots=True)
class Parity:
    """The outcome of a replay."""

    steps: int
    """Number of the engine's steps that were compared."""
    identical: int
    """Number of those with the same batch."""
    first: Difference | None
    stopped_at: int | None
    """The step with an error in the engine, where the comparison ended; `None` if there was none."""

    @property
    def share(self) -> float:
        """Share of identical steps."""
        return self.identical / self.steps if self.steps else 1.0


def replay_steps(log: StepLog) -> Parity:
    """Replay a recorded run through the simulator, with the measured step times.

    A step lasts until the next one begins. Requests reach the scheduler at the same boundary as in the
    engine, and emit as many tokens; an abort is a deadline at its boundary.

    Raises:
        InputError: the log has no scheduler settings, or unsupported ones.
    """
    return _compare(log, measured(log).compositions())


def predicted_steps(
    log: StepLog,
    latency: LatencyModel,
    *,
    config: SchedulerConfig | None = None,
    lengths: Lengths | None = None,
    blocks: Blocks | None = None,
) -> Parity:
    """The same with step times from a latency model: for how long the batches remain those of the engine.

    Requests arrive at their recorded times, not at the engine's step boundaries.

    Args:
        config: other settings than the engine's.
        lengths: other lengths than those recorded, see `recorded_requests`.
        blocks: where answers come in blocks, another mode or other rounds than the engine's.
    """
    again = predicted(log, latency, config=config, lengths=lengths, blocks=blocks, track_longest=True)
    return _compare(log, again.compositions())


def _compare(log: StepLog, served: list[Composition]) -> Parity:
    compared = _until_failure(log)
    recorded = [recorded_composition(log, index) for index in range(compared)]
    first: Difference | None = None
    identical = 0
    for index, engine in enumerate(recorded):
        simulator = served[index] if index < len(served) else None
        if engine == simulator:
            identical += 1
        elif first is None:
            first = _difference(index, engine, simulator)
    ended = compared == len(log) and all(log.requests["finish_reason"])
    if first is None and ended and len(served) > compared:
        first = Difference(compared, "steps", None, served[compared])
    return Parity(compared, identical, first, compared if compared < len(log) else None)


def _until_failure(log: StepLog) -> int:
    failed = log.steps["failed"]
    return failed.index(1) if 1 in failed else len(log)


def _difference(step: int, engine: Composition, simulator: Composition | None) -> Difference:
    if simulator is None:
        return Difference(step, "steps", engine, None)
    for part in (field.name for field in fields(engine)):
        mine, theirs = getattr(engine, part), getattr(simulator, part)
        if mine != theirs:
            return Difference(step, part, mine, theirs)
    raise AssertionError("they are equal")
