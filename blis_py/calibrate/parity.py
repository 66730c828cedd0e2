"""Does the simulator form the batches that the engine formed?

The arrivals and step times of a recorded run are fed to the simulator's own instance. Its scheduler then
sees what the engine's saw, at the same step boundaries, and must plan the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from blis_py.calibrate.composition import Composition
from blis_py.calibrate.kinds import Blocks, recorded_composition
from blis_py.calibrate.playbacks import measured, predicted
from blis_py.calibrate.recorded import Lengths
from blis_py.core.config import SchedulerConfig
from blis_py.latency.base import LatencyModel
from blis_py.traces.steplog import StepLog


@dataclass(frozen=True, slots=True)
class Difference:
    """A step that the simulator planned otherwise."""

    step: int
    part: str
    """Which part of the `Composition` differs first; `steps` where one side has no such step."""
    engine: object
    simulator: object


@dataclass(frozen=True, slots=True)
class Parity:
    """The outcome of a replay."""

    steps: int
    """Steps of the engine that were compared."""
    identical: int
    """Of these, steps with the same batch."""
    first: Difference | None
    stopped_at: int | None
    """The step with an error in the engine, where the comparison ended; `None` = it went to the end."""

    @property
    def share(self) -> float:
        """Of identical steps."""
        return self.identical / self.steps if self.steps else 1.0


def replay_steps(log: StepLog) -> Parity:
    """Replays a recorded run through the simulator, with the measured step times.

    A step lasts until the next one begins. Requests become known to the scheduler at the boundary at which
    the engine's saw them, and emit as many tokens as there; an abort is a deadline at its boundary.

    Raises:
        InputError: the log has no scheduler settings, or settings this version does not know.
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
    """The same with step times from a latency model: how long do the batches stay those of the engine?

    Requests come when they came, not at the engine's step boundaries.

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
