"""Does the simulator form the batches that the engine formed?

The arrivals and step times of a recorded run are fed to the simulator's own instance. Its scheduler then
sees what the engine's saw, at the same step boundaries, and must plan the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from simpy import Environment

from blis_py.cluster.instance import Instance
from blis_py.cluster.recorder import InstanceLog
from blis_py.core.config import SchedulerConfig
from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS, Request
from blis_py.core.scheduler import Scheduler, Step
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays, StepTime
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
    compared = _until_failure(log)
    served = _replay(log)
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


def _replay(log: StepLog) -> list[Composition]:
    """What the simulator does in each step."""
    scheduler = Scheduler(_scheduler_config(log), track_longest=True)
    requests, published = _requests(log)
    tap = _Tap(scheduler, {r.row: keys for r, keys in zip(requests, published, strict=True)})
    env = Environment()
    instance = Instance(env, scheduler, _MeasuredSteps(log, tap), tap, single_step=True)
    instance.undisturbed_until_ns = NEVER_NS  # all arrivals are known beforehand
    for enqueue_ns, request in sorted(zip(log.requests["enqueue_ns"], requests, strict=True), key=_by_time):
        instance.submit(request, enqueue_ns)
    env.run()
    return tap.compositions


def _by_time(pair: tuple[int, Request]) -> tuple[int, int]:
    return pair[0], pair[1].row


def _scheduler_config(log: StepLog) -> SchedulerConfig:
    settings = log.meta.get("scheduler")
    if not isinstance(settings, dict):
        raise InputError("the step log does not tell the scheduler's settings", key="scheduler")
    unknown = sorted(set(settings) - {field.name for field in fields(SchedulerConfig)})
    if unknown:
        raise InputError("unknown setting in the step log", key=f"scheduler.{unknown[0]}")
    return SchedulerConfig(**settings)


def _requests(log: StepLog) -> tuple[list[Request], list[Numbers]]:
    """The requests as they arrived, and the keys that each publishes when it ends."""
    table = log.requests
    requests, published = [], []
    for i, number in enumerate(table["number"]):
        keys, of_prompt = table["block_keys"][i], table["prompt_blocks"][i]
        deadlines = [ns for ns in (table["deadline_ns"][i], table["abort_ns"][i]) if ns >= 0]
        complete = table["finish_reason"][i] in ("stop", "length")
        requests.append(
            Request(
                table["id"][i],
                table["arrival_ns"][i],
                table["prompt_tokens"][i],
                table["output_tokens"][i] if complete else None,
                table["max_tokens"][i],
                table["priority"][i],
                min(deadlines, default=-1),
                keys[:of_prompt],
                number,
            )
        )
        published.append(keys[of_prompt:])
    return requests, published


class _MeasuredSteps:
    """A latency model that knows how long every step took."""

    name = "measured"
    provenance = "the times of a step log"
    frontend = FrontendDelays()
    uses_max_context = True

    def __init__(self, log: StepLog, tap: _Tap) -> None:
        starts = log.steps["start_ns"]
        # Whoever gave up after the last step did so at the boundary behind it.
        last = max([*log.steps["end_ns"][-1:], *log.requests["finish_ns"]], default=0)
        self._durations = [end - start for start, end in zip(starts, [*starts[1:], last], strict=True)]
        self._tap = tap

    def step_ns(self, features: StepFeatures) -> int:
        index = len(self._tap.compositions)
        return self._durations[index] if index < len(self._durations) else 1

    def step(self, features: StepFeatures) -> StepTime:
        return StepTime(self.step_ns(features), 0)

    def decode_run_ns(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> Sequence[int]:
        raise NotImplementedError("steps are replayed one by one")


class _Tap(InstanceLog):
    """Writes down who was in each step, and lets requests publish their outputs' blocks at their end."""

    def __init__(self, scheduler: Scheduler, published: dict[int, Numbers]) -> None:
        self.compositions: list[Composition] = []
        self._scheduler = scheduler
        self._published = published

    def steps(self, step: Step, start_ns: int, ends: Sequence[int]) -> None:
        scheduler = self._scheduler
        decoding = list(scheduler.decoding)
        self.compositions.append(
            Composition(
                decodes=_numbers(decoding),
                prefills=_numbers([request for request, _ in step.prefills]),
                chunks=tuple(tokens for _, tokens in step.prefills),
                admitted=_numbers(step.admitted),
                preempted=_numbers(step.preempted),
                features=step.features,
            )
        )
        ending = [r for r in decoding if r.finish_tick == scheduler.tick + 1]
        ending += [
            request
            for request, tokens in step.prefills
            if request.computed + tokens == request.num_tokens and request.generated + 1 == request.target
        ]
        for request in ending:
            scheduler.block_table(request)
            if scheduler.kv.prefix_caching:
                request.block_keys = [*request.block_keys, *self._published[request.row]]

    def idle(self, duration_ns: int) -> None: ...

    def unservable(self, request: Request, now_ns: int) -> None: ...

    def timed_out(self, requests: list[Request]) -> None: ...

    def finished(self, requests: list[Request]) -> None: ...

    def ended(self, requests: list[Request], outcome: Outcome) -> None: ...


def _numbers(requests: Sequence[Request]) -> Numbers:
    return tuple(request.row for request in requests)
