"""Block diffusion on a single instance without a cluster; every batch and every block is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blis_py.cluster.instances.diffusion import DiffusionCosts, DiffusionInstance
from blis_py.cluster.time.events import EventQueue
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.cluster.time.wakeups import WakeupQueue
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion import DiffusionScheduler
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.core.diffusion_log import BatchRow, DiffusionLog
from blis_py.core.diffusion_request import (
    BatchOutcome,
    Commit,
    DenoiseBatch,
    DiffusionCounters,
    DiffusionRequest,
)
from blis_py.core.request import NEVER_NS, Request
from blis_py.latency.base import LatencyModel
from blis_py.metrics.record import Outcome
from blis_py.metrics.visits import Onward


@dataclass(frozen=True, slots=True)
class LoneRun:
    """The record of a run."""

    scheduler: DiffusionScheduler
    """The scheduler in its final state."""
    batches: list[BatchRow]
    commit_ns: dict[DiffusionRequest, list[int]]
    """Commit time of each block, by request."""
    refused: list[DiffusionRequest]

    @property
    def counters(self) -> DiffusionCounters:
        return self.scheduler.totals


def run_alone(
    requests: Sequence[DiffusionRequest],
    rounds: Sequence[Sequence[int]],
    *,
    scheduler: SchedulerConfig,
    latency: LatencyModel,
    diffusion: DiffusionConfig | None = None,
    costs: DiffusionCosts | None = None,
    single_step: bool = False,
) -> LoneRun:
    """Serve requests on one instance to the end.

    Args:
        rounds: forward passes of each block of each request, by `request.row`.
        single_step: call the scheduler after every round. Slower, same result.
    """
    core = DiffusionScheduler(scheduler, diffusion or DiffusionConfig())
    unbounded, events = Lookahead(), _Logged()
    wakeups = WakeupQueue(EventQueue(), unbounded)
    instance = DiffusionInstance(wakeups, core, latency, events, unbounded, rounds, costs, single_step)
    in_order = sorted(requests, key=lambda request: request.arrival_ns)
    instance.submit([(request.arrival_ns, request) for request in in_order])
    wakeups.pass_until(NEVER_NS)
    return LoneRun(core, events.log.rows, events.log.commit_ns, events.log.refusals)


class _Logged:
    """Events of the instance; see `blis_py.cluster.instances.diffusion.RoundEvents`."""

    def __init__(self) -> None:
        self.log = DiffusionLog()

    def round(self, batch: DenoiseBatch, start_ns: int, end_ns: int) -> None: ...

    def batch(self, batch: DenoiseBatch, outcome: BatchOutcome) -> None:
        self.log.batch(batch, outcome)

    def commits(self, commits: Sequence[Commit], now_ns: int) -> None:
        self.log.commits(commits, now_ns)

    def idle(self, duration_ns: int) -> None: ...

    def unservable(self, request: Request, now_ns: int) -> None:
        assert isinstance(request, DiffusionRequest)
        self.log.refused(request)

    def timed_out(self, requests: list[Request]) -> None: ...

    def finished(self, requests: list[Request], end_ns: int) -> None: ...

    def goes_on(self, requests: list[Request], how: Onward, now_ns: int) -> None: ...

    def ended(self, requests: list[Request], outcome: Outcome) -> None: ...
