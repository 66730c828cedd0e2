"""Playback of recorded autoregressive runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blis_py.calibrate._playback import MeasuredTimes, Playback, ready_times
from blis_py.calibrate.composition import Composition
from blis_py.calibrate.recorded import Lengths, RecordedRun, recorded_requests, scheduler_config
from blis_py.cluster.instances.autoregressive import AutoregressiveInstance, StepEvents
from blis_py.cluster.instances.overlapped import OverlappedInstance
from blis_py.cluster.recording.instance_log import InstanceLog
from blis_py.cluster.recording.recorder import Recorder
from blis_py.cluster.time.events import EventQueue
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.cluster.time.wakeups import WakeupQueue
from blis_py.core.config import SchedulerConfig
from blis_py.core.features import SELDOM, further_names
from blis_py.core.request import Request, Status
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step
from blis_py.latency.base import LatencyModel
from blis_py.latency.step_run import StepRun
from blis_py.metrics.record import Outcome
from blis_py.metrics.visits import Onward
from blis_py.requests.table import RequestTable
from blis_py.traces.steplog import Numbers, StepLog


class StepPlayback(Playback):
    """The blocks of finished requests' answers can be shared afterwards, as in the engine."""

    def __init__(
        self,
        log: StepLog,
        recorded: Sequence[RecordedRun],
        ready_ns: Sequence[int],
        latency: LatencyModel,
        scheduler: Scheduler,
        single_step: bool,
    ) -> None:
        super().__init__(log, recorded, ready_ns, latency)
        self._scheduler, self._single_step = scheduler, single_step

    def compositions(self) -> list[Composition]:
        unknown = [name for name in (*SELDOM, *further_names()) if name not in self.log.steps]
        tap = _Tap(self._scheduler, self.log.requests["number"], unknown)
        self._serve(tap, single_step=True)
        return tap.compositions

    def _recorder(self, table: RequestTable) -> Recorder:
        return Recorder(table, self.latency.frontend)

    def _served(self, recorder: Recorder) -> int:
        return self._serve(InstanceLog(recorder, self._scheduler, record_steps=False), self._single_step)

    def _serve(self, events: StepEvents, single_step: bool) -> int:
        unbounded = Lookahead()
        wakeups = WakeupQueue(EventQueue(), unbounded)
        overlapped = self._scheduler.config.async_scheduling
        kind = OverlappedInstance if overlapped else AutoregressiveInstance
        instance = kind(
            wakeups, self._scheduler, self.latency, events, unbounded, single_step, self._publish_answers
        )
        return self._submitted(wakeups, instance, [one.request for one in self.recorded])

    def _publish_answers(self, step: Step, steps: int) -> None:
        scheduler = self._scheduler
        if not scheduler.kv.prefix_caching:
            return
        overlapped = scheduler.config.async_scheduling
        for request in _in_flight(step) if overlapped else _ending(scheduler, step, steps):
            if overlapped:
                scheduler.settle(request)
            else:
                scheduler.block_table(request)
            request.block_keys = [*request.block_keys, *self.recorded[request.row].published]


def as_measured(log: StepLog) -> StepPlayback:
    """A playback with measured step times; requests arrive at the engine's step boundaries."""
    scheduler = Scheduler(scheduler_config(log), track_longest=True)
    latency = MeasuredTimes(log, lambda: scheduler.tick)
    ready_ns = log.requests["enqueue_ns"]
    return StepPlayback(log, recorded_requests(log), ready_ns, latency, scheduler, single_step=True)


def as_predicted(
    log: StepLog,
    latency: LatencyModel,
    config: SchedulerConfig,
    lengths: Lengths | None = None,
    single_step: bool = False,
    track_longest: bool = False,
) -> StepPlayback:
    """A playback with step times from a latency model; requests arrive at their recorded times."""
    scheduler = Scheduler(config, track_longest=track_longest or latency.uses_max_context)
    recorded = recorded_requests(log, block_size=config.block_size, lengths=lengths)
    return StepPlayback(log, recorded, ready_times(recorded, latency), latency, scheduler, single_step)


def _ending(scheduler: Scheduler, step: Step, steps: int) -> Iterable[Request]:
    """Requests that end with `steps` identical steps; the scheduler is not updated yet."""
    tick = scheduler.tick + steps
    yield from [r for r in scheduler.decoding if r.finish_tick == tick]
    for request, tokens in step.prefills:
        if request.computed + tokens == request.num_tokens and request.generated + 1 == request.target:
            yield request


def _in_flight(step: Step) -> Iterable[Request]:
    """Requests that end with a step in flight and still have blocks; its outcome is not known to the
    scheduler."""
    return [r for r in step.ending if r.status not in (Status.FINISHED, Status.WAITING)]


class _Tap:
    """Recorder of the composition of each step; see `StepEvents`.

    Args:
        unknown: features missing in the log; they are taken as 0.
    """

    def __init__(self, scheduler: Scheduler, numbers: Sequence[int], unknown: Sequence[str]) -> None:
        self.compositions: list[Composition] = []
        self._scheduler = scheduler
        self._numbers = numbers
        self._missing_as_zero = dict.fromkeys(unknown, 0)

    def steps(self, step: Step, start_ns: int, run: StepRun) -> None:
        self.compositions.append(
            Composition(
                decodes=self._of(self._scheduler.decoding),
                prefills=self._of(request for request, _ in step.prefills),
                chunks=tuple(tokens for _, tokens in step.prefills),
                admitted=self._of(step.admitted),
                preempted=self._of(step.preempted),
                features=step.features.but(self._missing_as_zero),
            )
        )

    def _of(self, requests: Iterable[Request]) -> Numbers:
        return tuple(self._numbers[request.row] for request in requests)

    def in_progress(self, step: Step) -> None: ...

    def idle(self, duration_ns: int) -> None: ...

    def unservable(self, request: Request, now_ns: int) -> None: ...

    def timed_out(self, requests: list[Request]) -> None: ...

    def finished(self, requests: list[Request], end_ns: int) -> None: ...

    def goes_on(self, requests: list[Request], how: Onward, now_ns: int) -> None: ...

    def ended(self, requests: list[Request], outcome: Outcome) -> None: ...
