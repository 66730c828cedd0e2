"""Playback of a recorded run on a simulated instance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from blis_py.calibrate.composition import Composition
from blis_py.calibrate.recorded import RecordedRun, requests_table, step_durations_ns
from blis_py.cluster.instances.instance import Instance
from blis_py.cluster.recording.recorder import Recorder
from blis_py.cluster.time.wakeups import WakeupQueue
from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS, Request
from blis_py.latency.base import FrontendDelays, LatencyModel, StepTime
from blis_py.latency.step_run import StepRun
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import RequestTable
from blis_py.traces.steplog import StepLog


class Playback(ABC):
    """The requests of a log with their queueing times; can be served once.

    Args:
        recorded: new requests.
        ready_ns: queueing time of each request.
    """

    def __init__(
        self, log: StepLog, recorded: Sequence[RecordedRun], ready_ns: Sequence[int], latency: LatencyModel
    ) -> None:
        self.log, self.recorded, self.ready_ns, self.latency = log, recorded, ready_ns, latency

    def record(self) -> RunRecord:
        """The full record of the simulation; rows as in the log's requests."""
        recorder = self._recorder(requests_table(self.recorded))
        recorder.ready_ns = np.array(self.ready_ns, dtype=np.int64)
        recorder.instance[:] = 0
        return recorder.record(self._served(recorder))

    @abstractmethod
    def compositions(self) -> list[Composition]:
        """The composition of each simulated step."""

    @abstractmethod
    def _recorder(self, table: RequestTable) -> Recorder: ...

    @abstractmethod
    def _served(self, recorder: Recorder) -> int:
        """Serve the requests; returns the end time."""

    def _submitted(self, wakeups: WakeupQueue, instance: Instance, requests: Sequence[Request]) -> int:
        """Serve requests on an instance; returns the end time."""
        arrivals = zip(self.ready_ns, requests, strict=True)
        instance.submit(sorted(arrivals, key=lambda pair: (pair[0], pair[1].row)))
        wakeups.pass_until(NEVER_NS)
        return instance.now_ns


class MeasuredTimes:
    """A latency model that replays the step times of a log. For single steps of one instance.

    Args:
        passed: steps so far.
    """

    name = "measured"
    provenance = "the times of a step log"
    frontend = FrontendDelays()
    uses_max_context = True

    def __init__(self, log: StepLog, passed: Callable[[], int]) -> None:
        self._durations_ns: list[int] = step_durations_ns(log).tolist()
        self._passed = passed

    def step_ns(self, features: StepFeatures) -> int:
        index = self._passed()
        return self._durations_ns[index] if index < len(self._durations_ns) else 1

    def step(self, features: StepFeatures) -> StepTime:
        return StepTime(self.step_ns(features), 0)

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        raise NotImplementedError("steps are replayed one by one")


def ready_times(recorded: Sequence[RecordedRun], latency: LatencyModel) -> list[int]:
    """Queueing times of requests that arrive at their recorded times."""
    return [one.request.arrival_ns + latency.frontend.before_enqueue_ns for one in recorded]
