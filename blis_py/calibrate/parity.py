"""Does the simulator form the batches that the engine formed?

The arrivals and step times of a recorded run are fed to the simulator's own instance. Its scheduler then
sees what the engine's saw, at the same step boundaries, and must plan the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from blis_py.calibrate.diffusion_recorded import Blocks, recorded_blocks
from blis_py.calibrate.recorded import (
    Lengths,
    MeasuredSteps,
    Recorded,
    recorded_requests,
    scheduler_config,
    serve,
)
from blis_py.core.config import SchedulerConfig
from blis_py.core.features import StepFeatures
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step
from blis_py.latency.base import LatencyModel
from blis_py.latency.step_run import StepRun
from blis_py.metrics.record import Outcome
from blis_py.traces.steplog import Numbers, StepLog


@dataclass(frozen=True, slots=True)
class Composition:
    """Who does what in one step; requests by their number, in the order of the batch."""

    decodes: Numbers
    prefills: Numbers
    chunks: Numbers
    """Tokens of each prefill."""
    admitted: Numbers
    preempted: Numbers
    features: StepFeatures


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
    if "diffusion" in log.meta:
        from blis_py.calibrate.diffusion_parity import replay_rounds

        return replay_rounds(log)
    scheduler = Scheduler(scheduler_config(log), track_longest=True)
    ready_ns = log.requests["enqueue_ns"]
    return _compare(
        log, _served(log, scheduler, recorded_requests(log), ready_ns, MeasuredSteps(log, scheduler))
    )


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
        blocks: of block diffusion, another mode or other rounds than the engine's.
    """
    if "diffusion" in log.meta:
        from blis_py.calibrate.diffusion_parity import predicted_rounds

        executed, settings = blocks or recorded_blocks(log), config or scheduler_config(log)
        return predicted_rounds(log, latency, config=settings, blocks=executed, lengths=lengths)
    scheduler = Scheduler(config or scheduler_config(log), track_longest=True)
    recorded = recorded_requests(log, block_size=scheduler.config.block_size, lengths=lengths)
    ready_ns = [one.request.arrival_ns + latency.frontend.before_enqueue_ns for one in recorded]
    return _compare(log, _served(log, scheduler, recorded, ready_ns, latency))


def _compare(log: StepLog, served: list[Composition]) -> Parity:
    compared = _until_failure(log)
    recorded = [_recorded(log, index) for index in range(compared)]
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
    for part in (field.name for field in fields(Composition)):
        mine, theirs = getattr(engine, part), getattr(simulator, part)
        if mine != theirs:
            return Difference(step, part, mine, theirs)
    raise AssertionError("they are equal")


def _recorded(log: StepLog, index: int) -> Composition:
    steps = log.steps
    return Composition(
        decodes=steps["decode_ids"][index],
        prefills=steps["prefill_ids"][index],
        chunks=steps["prefill_chunks"][index],
        admitted=steps["admitted_ids"][index],
        preempted=steps["preempted_ids"][index],
        features=log.features(index),
    )


def _served(
    log: StepLog,
    scheduler: Scheduler,
    recorded: Sequence[Recorded],
    ready_ns: Sequence[int],
    latency: LatencyModel,
) -> list[Composition]:
    """What the simulator does in each step."""
    tap = _Tap(scheduler, log.requests["number"])
    serve(scheduler, recorded, ready_ns, latency, tap, single_step=True)
    return tap.compositions


class _Tap:
    """Writes down who was in each step; see `blis_py.cluster.events.StepEvents`."""

    def __init__(self, scheduler: Scheduler, numbers: Sequence[int]) -> None:
        self.compositions: list[Composition] = []
        self._scheduler = scheduler
        self._numbers = numbers

    def steps(self, step: Step, start_ns: int, run: StepRun) -> None:
        scheduler = self._scheduler
        self.compositions.append(
            Composition(
                decodes=self._of(scheduler.decoding),
                prefills=self._of(request for request, _ in step.prefills),
                chunks=tuple(tokens for _, tokens in step.prefills),
                admitted=self._of(step.admitted),
                preempted=self._of(step.preempted),
                features=step.features,
            )
        )

    def _of(self, requests: Iterable[Request]) -> Numbers:
        return tuple(self._numbers[request.row] for request in requests)

    def idle(self, duration_ns: int) -> None: ...

    def unservable(self, request: Request, now_ns: int) -> None: ...

    def timed_out(self, requests: list[Request]) -> None: ...

    def finished(self, requests: list[Request]) -> None: ...

    def ended(self, requests: list[Request], outcome: Outcome) -> None: ...
