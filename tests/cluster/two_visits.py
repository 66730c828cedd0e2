"""Runs driven by hand in which an instance hands a request over to another."""

from __future__ import annotations

from typing import Any

import numpy as np

from blis_py.cluster.recording.instance_log import InstanceLog
from blis_py.cluster.recording.recorder import Recorder
from blis_py.core.config import SchedulerConfig
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step
from blis_py.latency.base import FrontendDelays
from blis_py.latency.step_run import StepRun
from blis_py.metrics.record import RunRecord
from blis_py.metrics.visits import Onward, Role
from blis_py.requests.table import RequestTable

US = 1000
CONFIG = SchedulerConfig(num_kv_blocks=100, max_model_len=4096)
ROLES = (Role.PREFILL, Role.DECODE)


def table(arrivals_us: list[int], outputs: list[int]) -> RequestTable:
    """Prompts of 16 tokens."""
    arrival_ns = np.array(arrivals_us, dtype=np.int64) * US
    return RequestTable.build(arrival_ns, np.full(len(outputs), 16), np.array(outputs))


class Pair:
    """A prefill and a decode instance, and what is recorded of them.

    Args:
        observer: see `blis_py.cluster.recording.observer`.
        emission: of both instances.
    """

    def __init__(
        self,
        requests: RequestTable,
        frontend: FrontendDelays | None = None,
        observer: Any = None,
        emission: Any = None,
    ) -> None:
        self.recorder = Recorder(requests, frontend or FrontendDelays())
        self.schedulers = [Scheduler(CONFIG, emission=emission) for _ in ROLES]
        self.logs = [
            InstanceLog(self.recorder, scheduler, record_steps=False, role=role)
            for scheduler, role in zip(self.schedulers, ROLES, strict=True)
        ]
        self.events: list[Any] = [*self.logs]
        if observer is not None:
            self.events = [observer.beside(i, self.schedulers[i], log) for i, log in enumerate(self.logs)]
        self.now_ns = [0, 0]

    def come(self, index: int, request: Request, at_us: int) -> None:
        """It reaches the queue of an instance, which has nothing to do until then or is there already."""
        if at_us * US > self.now_ns[index]:
            self.events[index].idle(at_us * US - self.now_ns[index])
            self.now_ns[index] = at_us * US
        self.schedulers[index].add(request)

    def step(self, index: int, until_us: int) -> list[Request]:
        """One step, which ends then; who finished with it."""
        step: Step | None = self.schedulers[index].schedule(self.now_ns[index])
        assert step is not None
        self.events[index].steps(step, self.now_ns[index], StepRun(1, until_us * US))
        self.now_ns[index] = until_us * US
        return self.schedulers[index].finish(step, 1)

    def hand_over(self, request: Request, left_us: int, ready_us: int, output: int) -> Request:
        """It leaves the first instance, and reaches the queue of the second, up to so many tokens in all."""
        self.events[0].goes_on([request], Onward.HANDED_OVER, left_us * US)
        after = request.next_visit(output, max_tokens=0)
        self.recorder.revisit(after)
        self.recorder.dispatched(after, 1, ready_us * US)
        return after

    def record(self, end_us: int) -> RunRecord:
        return self.recorder.record(end_us * US)


def handed_over(frontend: FrontendDelays | None = None, observer: Any = None) -> RunRecord:
    """One request of 3 tokens that arrives at 5 us.

    It prefills from 5 to 15 us, which brings its first token. It leaves at 17 and reaches the other queue at
    22; steps that end at 30 and 42 bring the others.
    """
    pair = Pair(table([5], [3]), frontend, observer)
    prefill = Request("request_0", 5 * US, 16, 1, row=0)
    pair.recorder.dispatched(prefill, 0)
    pair.come(0, prefill, 5)
    assert pair.step(0, 15) == [prefill]
    decode = pair.hand_over(prefill, 17, 22, output=3)
    pair.come(1, decode, 22)
    assert pair.step(1, 30) == []
    pair.events[1].finished(pair.step(1, 42), 42 * US)
    return pair.record(42)
