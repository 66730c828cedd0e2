"""Block diffusion on a single instance: the smallest simulation."""

from __future__ import annotations

from collections.abc import Sequence

from blis_py.cluster.instances.diffusion import DiffusionCosts, DiffusionInstance
from blis_py.cluster.recording.diffusion_record import DiffusionRun, RunLog
from blis_py.cluster.time.events import EventQueue
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.cluster.time.wakeups import WakeupQueue
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion import DiffusionScheduler
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.core.diffusion_request import DiffusionRequest
from blis_py.core.request import NEVER_NS
from blis_py.latency.base import LatencyModel


def run_alone(
    requests: Sequence[DiffusionRequest],
    rounds: Sequence[Sequence[int]],
    *,
    scheduler: SchedulerConfig,
    latency: LatencyModel,
    diffusion: DiffusionConfig | None = None,
    costs: DiffusionCosts | None = None,
    single_step: bool = False,
) -> DiffusionRun:
    """Serve requests on one instance to the end, and keep every batch.

    Args:
        rounds: forward passes of each block of each request, by `request.row`.
        single_step: call the scheduler after every round. Slower, same result.

    Raises:
        InputError: settings that cannot work.
    """
    core = DiffusionScheduler(scheduler, diffusion or DiffusionConfig())
    unbounded, log = Lookahead(), RunLog()
    wakeups = WakeupQueue(EventQueue(), unbounded)
    instance = DiffusionInstance(wakeups, core, latency, log, unbounded, rounds, costs, single_step)
    in_order = sorted(requests, key=lambda request: request.arrival_ns)
    instance.submit([(request.arrival_ns, request) for request in in_order])
    wakeups.pass_until(NEVER_NS)
    return DiffusionRun(requests, log.log.commit_ns, core, log.log.rows, log.log.refusals)
