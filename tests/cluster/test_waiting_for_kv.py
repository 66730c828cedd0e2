"""Simulated instances whose requests wait for KV from outside."""

from __future__ import annotations

from typing import Any

import pytest

from blis_py.cluster.instances.autoregressive import AutoregressiveInstance
from blis_py.cluster.instances.instance import Instance
from blis_py.cluster.instances.overlapped import OverlappedInstance
from blis_py.cluster.time.events import EventQueue
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.cluster.time.wakeups import WakeupQueue
from blis_py.core.config import SchedulerConfig
from blis_py.core.kv_source import Supply
from blis_py.core.request import NEVER_NS, Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.latency.step_run import StepRun
from blis_py.metrics.record import Outcome

LATENCY = Linear(LinearCoefficients(gpu=LinearCosts(step=100, prefill_tokens=1, decode_kv_tokens=1)))


class Store:
    """Has all but the last token of every prompt; a load takes `load_ns`."""

    def __init__(self, load_ns: int) -> None:
        self.load_ns = load_ns

    def offer(self, request: Request, computed_tokens: int, now_ns: int) -> Supply | None:
        return Supply(1000, now_ns + self.load_ns)

    def load(self, request: Request, computed_tokens: int, supply: Supply, now_ns: int) -> None: ...

    def arrived(self, request: Request, now_ns: int) -> int:
        return 1000

    def cancel(self, request: Request) -> None: ...


class Notes:
    """Every step by its end, and the end of every request."""

    def __init__(self) -> None:
        self.step_ends_ns: list[int] = []
        self.ends: dict[str, tuple[str, int]] = {}
        self.idle_ns = 0

    def steps(self, step: Step, start_ns: int, run: StepRun) -> None:
        self.step_ends_ns += [int(ns) for ns in run.ends_ns()]

    def in_progress(self, step: Step) -> None: ...

    def idle(self, duration_ns: int) -> None:
        self.idle_ns += duration_ns

    def unservable(self, request: Request, now_ns: int) -> None: ...

    def timed_out(self, requests: list[Request]) -> None:
        self.ends |= {request.id: ("timed out", request.deadline_ns) for request in requests}

    def finished(self, requests: list[Request], end_ns: int) -> None:
        self.ends |= {request.id: ("finished", end_ns) for request in requests}

    def ended(self, requests: list[Request], outcome: Outcome) -> None:
        self.ends |= {request.id: (outcome.name, -1) for request in requests}


def simulated(requests: list[Request], load_ns: int, **how: Any) -> tuple[Notes, Instance]:
    """One instance to the end of its work, or to `stop_ns`."""
    stop_ns, overlapped = how.pop("stop_ns", NEVER_NS), how.pop("overlapped", False)
    notes, lookahead = Notes(), Lookahead(stop_ns, none_ahead=how.pop("none_ahead", False))
    wakeups = WakeupQueue(EventQueue(), lookahead)
    config = SchedulerConfig(100, 1000, block_size=4, async_scheduling=overlapped)
    kind = OverlappedInstance if overlapped else AutoregressiveInstance
    core = Scheduler(config, source=Store(load_ns))
    instance = kind(wakeups, core, LATENCY, notes, lookahead, **how)
    for request in requests:
        instance.submit([(request.arrival_ns, request)])
    wakeups.pass_until(stop_ns)
    if stop_ns != NEVER_NS:
        instance.stop(stop_ns)
    return notes, instance


def test_an_idle_instance_goes_on_when_the_kv_is_there() -> None:
    notes, _ = simulated([Request("A", 50, 20, 2, 2)], load_ns=1000)
    assert notes.step_ends_ns == [1050 + 101, 1050 + 101 + 120]
    assert notes.idle_ns == 1050
    assert notes.ends == {"A": ("finished", 1271)}


def test_it_notes_timeouts_meanwhile() -> None:
    notes, instance = simulated([Request("A", 50, 20, 2, 2, deadline_ns=400)], load_ns=1000)
    assert (notes.ends, notes.step_ends_ns, instance.in_flight) == ({"A": ("timed out", 400)}, [], 0)


def test_at_the_end_of_a_run_requests_that_wait_for_kv_are_queued() -> None:
    notes, instance = simulated([Request("A", 50, 20, 2, 2)], load_ns=1000, stop_ns=500)
    assert notes.ends == {"A": ("QUEUED", -1)}
    assert instance.queue_depth(500) == 1


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("load_ns", [0, 130, 1000, 5000])
def test_runs_of_steps_end_where_kv_is_ready(load_ns: int, overlapped: bool) -> None:
    def requests() -> list[Request]:
        return [Request(f"r{i}", 700 * i, 20 + i, 40, 40) for i in range(6)]

    jumped, _ = simulated(requests(), load_ns, overlapped=overlapped)
    single, _ = simulated(requests(), load_ns, overlapped=overlapped, single_step=True)
    assert len(jumped.ends) == 6
    assert (jumped.step_ends_ns, jumped.ends) == (single.step_ends_ns, single.ends)
