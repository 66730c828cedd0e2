"""Does the simulator form the batches that a block-diffusion engine formed?

The arrivals, round times and rounds per block of a recorded run are fed to the simulator's own instance. Its
scheduler then sees what the engine's saw, at the same boundaries, and must plan the same rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from blis_py.calibrate.diffusion_recorded import Blocks, diffusion_config, rounds_of_each, serve_blocks
from blis_py.calibrate.parity import Composition, Difference, Parity
from blis_py.calibrate.recorded import Lengths, recorded_requests, scheduler_config, step_durations
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion import DiffusionScheduler
from blis_py.core.diffusion_request import Batch, Commit, DiffusionFeatures, Outcome
from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS, Request
from blis_py.latency.base import FrontendDelays, LatencyModel, StepTime
from blis_py.latency.step_run import StepRun
from blis_py.metrics.record import Outcome as Fate
from blis_py.traces.steplog import Numbers, StepLog

NEVER_DONE = 1 << 40
"""Rounds of a block whose request left before it was final."""


@dataclass(frozen=True, slots=True)
class RoundComposition(Composition):
    """Who does what in one round: `decodes` are the requests whose blocks take part.

    The features are without LM-head rows and commits: how a block fills up is the model's affair, and not
    simulated.
    """

    batch: int
    """Index of the batch it belongs to."""
    committed: Numbers
    """Requests whose block became final."""


def replay_rounds(log: StepLog) -> Parity:
    """Replays a recorded run of block diffusion through the simulator, with the measured round times.

    A round lasts until the next one begins; an abort is a deadline at its boundary.

    Raises:
        InputError: the log is not one of block diffusion, or has settings this version does not know.
    """
    recorded = recorded_requests(log)
    rounds = [[*own, NEVER_DONE] for own in log.requests["block_rounds"]]
    core, tap = DiffusionScheduler(scheduler_config(log), diffusion_config(log)), RoundTap()
    serve_blocks(core, recorded, log.requests["enqueue_ns"], MeasuredRounds(log, tap.passed), tap, rounds)
    return _compare(log, tap.compositions)


def predicted_rounds(
    log: StepLog,
    latency: LatencyModel,
    *,
    config: SchedulerConfig,
    blocks: Blocks,
    lengths: Lengths | None = None,
) -> Parity:
    """The same with round times from a latency model: how long do the batches stay those of the engine?

    Requests come when they came, not at the engine's step boundaries.

    Args:
        config, blocks: settings and rounds, maybe others than the engine's.
        lengths: other lengths than those recorded, see `recorded_requests`.
    """
    recorded = recorded_requests(log, block_size=config.block_size, lengths=lengths)
    ready_ns = [one.request.arrival_ns + latency.frontend.before_enqueue_ns for one in recorded]
    rounds = rounds_of_each(log, recorded, blocks, config.max_model_len)
    core, tap = DiffusionScheduler(config, blocks.config), RoundTap()
    serve_blocks(core, recorded, ready_ns, latency, tap, rounds, blocks.costs)
    return _compare(log, tap.compositions)


def _compare(log: StepLog, served: list[RoundComposition]) -> Parity:
    failed = log.steps["failed"]
    compared = failed.index(1) if 1 in failed else len(log)
    first: Difference | None = None
    identical = 0
    for index in range(compared):
        engine, simulator = _recorded(log, index), served[index] if index < len(served) else None
        if engine == simulator:
            identical += 1
        elif first is None:
            first = _difference(index, engine, simulator)
    ended = compared == len(log) and all(log.requests["finish_reason"])
    if first is None and ended and len(served) > compared:
        first = Difference(compared, "steps", None, served[compared])
    return Parity(compared, identical, first, compared if compared < len(log) else None)


def _difference(step: int, engine: RoundComposition, simulator: RoundComposition | None) -> Difference:
    if simulator is not None:
        for part in (field.name for field in fields(RoundComposition)):
            mine, theirs = getattr(engine, part), getattr(simulator, part)
            if mine != theirs:
                return Difference(step, part, mine, theirs)
    return Difference(step, "steps", engine, simulator)


def _recorded(log: StepLog, index: int) -> RoundComposition:
    steps = log.steps
    features = log.features(index)
    assert isinstance(features, DiffusionFeatures)
    return RoundComposition(
        decodes=steps["decode_ids"][index],
        prefills=steps["prefill_ids"][index],
        chunks=steps["prefill_chunks"][index],
        admitted=steps["admitted_ids"][index],
        preempted=steps["preempted_ids"][index],
        features=replace(features, emitted_rows=0, commit_blocks=0),
        batch=steps["batch"][index],
        committed=steps["committed_ids"][index],
    )


class MeasuredRounds:
    """A latency model that knows how long every round of a log took."""

    name = "measured"
    provenance = "the times of a step log"
    frontend = FrontendDelays()
    uses_max_context = True

    def __init__(self, log: StepLog, passed: Callable[[], int]) -> None:
        """`passed`: rounds so far."""
        self._durations: list[int] = step_durations(log).tolist()
        self._passed = passed

    def step_ns(self, features: StepFeatures) -> int:
        index = self._passed()
        return self._durations[index] if index < len(self._durations) else 1

    def step(self, features: StepFeatures) -> StepTime:
        return StepTime(self.step_ns(features), 0)

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        raise NotImplementedError("block diffusion has no decode steps")


class RoundTap:
    """Writes down who was in each round; see `blis_py.cluster.events.RoundEvents`."""

    def __init__(self) -> None:
        self.compositions: list[RoundComposition] = []
        self._batches = 0
        self._begins = True

    def passed(self) -> int:
        """Rounds so far."""
        return len(self.compositions)

    def round(self, batch: Batch, start_ns: int, end_ns: int) -> None:
        first = self._begins
        self._begins = False
        self.compositions.append(
            RoundComposition(
                decodes=_numbers(batch.denoise),
                prefills=_numbers([request for request, _ in batch.prefills]) if first else (),
                chunks=tuple(tokens for _, tokens in batch.prefills) if first else (),
                admitted=_numbers(batch.admitted) if first else (),
                preempted=_numbers(batch.preempted) if first else (),
                features=replace(batch.features, emitted_rows=0, commit_blocks=0),
                batch=self._batches,
                committed=(),
            )
        )

    def batch(self, batch: Batch, outcome: Outcome) -> None:
        self._batches += 1
        self._begins = True

    def commits(self, commits: Sequence[Commit], now_ns: int) -> None:
        committed = _numbers([commit.request for commit in commits])
        self.compositions[-1] = replace(self.compositions[-1], committed=committed)

    def idle(self, duration_ns: int) -> None: ...

    def unservable(self, request: Request, now_ns: int) -> None: ...

    def timed_out(self, requests: list[Request]) -> None: ...

    def finished(self, requests: list[Request]) -> None: ...

    def ended(self, requests: list[Request], outcome: Fate) -> None: ...


def _numbers(requests: Sequence[Request]) -> Numbers:
    return tuple(request.row for request in requests)
