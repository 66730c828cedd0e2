"""A whole run: requests arrive, are dispatched, and every instance lives through them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from simpy import Environment, Event

from blis_py.cluster.instance import Instance
from blis_py.cluster.recorder import InstanceLog, Recorder
from blis_py.cluster.router import ROUTING_POLICIES, Signals
from blis_py.core.config import SchedulerConfig
from blis_py.core.kv import KeySpace
from blis_py.core.request import NEVER_NS, Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.slo import instance_priorities
from blis_py.errors import InputError
from blis_py.latency.base import LatencyModel
from blis_py.metrics.record import RunRecord
from blis_py.workload.table import RequestTable

if TYPE_CHECKING:
    from blis_py.cluster.diffusion import DiffusionInstance
    from blis_py.cluster.diffusion_run import BlockDiffusion

Progress = Callable[[int, int], None]
"""Called now and then with (requests ended, requests in all)."""

_CHUNK = 4096
_ROUTER_STREAM = 0x726F757465
"""Sets the router's random stream apart from those of the workload under the same seed."""


def simulate(
    table: RequestTable,
    *,
    scheduler: SchedulerConfig,
    latency: LatencyModel,
    num_instances: int = 1,
    routing_policy: str = "round-robin",
    admission_latency_ns: int = 0,
    routing_latency_ns: int = 0,
    snapshot_refresh_ns: int = 50_000_000,
    seed: int = 42,
    horizon_ns: int | None = None,
    slo_priorities: Mapping[str, int] | None = None,
    diffusion: BlockDiffusion | None = None,
    record_steps: bool = False,
    single_step: bool = False,
    progress: Progress | None = None,
) -> RunRecord:
    """Serves `table` on `num_instances` identical instances.

    Args:
        snapshot_refresh_ns: how old the load an instance reports to the router may get.
        seed: of the router's random ties.
        horizon_ns: end of the run; requests arriving later are not part of it. None = until the
            last request has ended.
        slo_priorities: cluster-side priorities of SLO classes that replace the defaults.
        diffusion: the requests fill blocks by denoising; None = they are autoregressive.
        record_steps: keep the compact steps table.
        single_step: simulate every decode step by itself. Slower, same result.
        progress: called with (requests ended, requests in all).

    Raises:
        InputError: an unknown routing policy, no instances, an SLO class without a priority, or times that
            go beyond the clock.
    """
    if num_instances < 1:
        raise InputError("must be at least 1", key="num_instances", value=num_instances)
    if routing_policy not in ROUTING_POLICIES:
        raise InputError(
            "unknown routing policy",
            key="routing_policy",
            value=routing_policy,
            fix=f"use one of {', '.join(ROUTING_POLICIES)}",
        )
    if horizon_ns is not None:
        table = table.take(slice(0, int(np.searchsorted(table.arrival_ns, horizon_ns, side="right"))))

    env = Environment()
    on_the_way_ns = admission_latency_ns + routing_latency_ns
    recorder: Recorder
    instances: Sequence[Instance | DiffusionInstance]
    logs: Sequence[InstanceLog]
    kind: type[Request] = Request
    if diffusion is not None:
        from blis_py.cluster.diffusion import DiffusionInstance
        from blis_py.cluster.diffusion_recorder import DiffusionInstanceLog, DiffusionRecorder
        from blis_py.core.diffusion import DiffusionScheduler
        from blis_py.core.diffusion_request import DiffusionRequest

        kind = DiffusionRequest
        block = diffusion.config.block_tokens
        recorder = own = DiffusionRecorder(table, latency.frontend, block, on_the_way_ns)
        blocks = [DiffusionScheduler(scheduler, diffusion.config) for _ in range(num_instances)]
        logs = noted = [DiffusionInstanceLog(own, core, record_steps) for core in blocks]
        how = (diffusion.rounds, diffusion.costs, single_step)
        instances = [
            DiffusionInstance(env, core, latency, log, *how) for core, log in zip(blocks, noted, strict=True)
        ]
    else:
        recorder = Recorder(table, latency.frontend, on_the_way_ns)
        longest = record_steps or latency.uses_max_context
        cores = [Scheduler(scheduler, track_longest=longest) for _ in range(num_instances)]
        logs = [InstanceLog(recorder, core, record_steps) for core in cores]
        instances = [
            Instance(env, core, latency, log, single_step) for core, log in zip(cores, logs, strict=True)
        ]
    signals = Signals(instances, snapshot_refresh_ns)
    rng = np.random.default_rng([seed, _ROUTER_STREAM])
    route = ROUTING_POLICIES[routing_policy](instances, signals, rng)
    dispatched = len(table)
    if horizon_ns is not None:
        dispatched = int(np.searchsorted(table.arrival_ns, horizon_ns - on_the_way_ns, side="right"))

    def arrivals() -> Generator[Event, None, None]:
        """Each request passes admission and routing, and goes to an instance."""
        dispatch = dispatch_each if route.looks_at_load or single_step else dispatch_ahead
        for batch in requests(table, dispatched, scheduler.block_size, slo_priorities, kind):
            yield from dispatch(batch)
            if progress is not None and len(batch) == _CHUNK:
                progress(batch[-1].row + 1 - sum(i.in_flight for i in instances), len(table))

    def dispatch_each(batch: list[Request]) -> Generator[Event, None, None]:
        for request in batch:
            dispatch_ns = request.arrival_ns + on_the_way_ns
            if dispatch_ns > env.now:
                yield env.timeout(dispatch_ns - env.now)
            recorder.instance[request.row] = index = route(dispatch_ns)
            instances[index].submit(request, dispatch_ns)

    def dispatch_ahead(batch: list[Request]) -> Generator[Event, None, None]:
        """Where the route does not depend on the instances' state, no need to wait until each is due.

        So every instance knows how long it will be left alone.
        """
        rows = slice(batch[0].row, batch[-1].row + 1)
        dispatch_ns = (table.arrival_ns[rows] + on_the_way_ns).tolist()
        if dispatch_ns[0] > env.now:
            yield env.timeout(dispatch_ns[0] - env.now)
        chosen = [route(now_ns) for now_ns in dispatch_ns]
        inboxes: list[list[tuple[int, Request]]] = [[] for _ in instances]
        arrivals = zip(recorder.ready_ns[rows].tolist(), batch, strict=True)
        for index, arrival in zip(chosen, arrivals, strict=True):
            inboxes[index].append(arrival)
        for instance, inbox in zip(instances, inboxes, strict=True):
            instance.submit_all(inbox)
            instance.undisturbed_until_ns = nobody_until_ns(rows.stop)
        recorder.instance[rows] = chosen

    def nobody_until_ns(row: int) -> int:
        """All rows before this one are dispatched: until the next is, nothing can come."""
        end_ns = NEVER_NS if horizon_ns is None else horizon_ns
        return end_ns if row == dispatched else int(table.arrival_ns[row]) + on_the_way_ns - 1

    env.process(arrivals())
    with _without_garbage_collector(), _within_the_clock():
        env.run(until=None if horizon_ns is None else horizon_ns + 1)
    end_ns = max(int(env.now), *(i.now_ns for i in instances)) if horizon_ns is None else horizon_ns
    for instance in instances:
        instance.stop(end_ns)
    if progress is not None:
        progress(len(table) - sum(i.in_flight for i in instances), len(table))
    return recorder.record(logs, end_ns)


@contextmanager
def _without_garbage_collector() -> Iterator[None]:
    """A run makes no reference cycles; the collector would only walk the waiting requests again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _within_the_clock() -> Iterator[None]:
    """Times are 64-bit nanoseconds."""
    try:
        yield
    except OverflowError as error:
        problem = "the run goes on for longer than a century, which is beyond the clock"
        raise InputError(problem, fix="look for a step time or an arrival that is far too large") from error


def requests(
    table: RequestTable,
    count: int,
    block_size: int,
    slo_priorities: Mapping[str, int] | None = None,
    kind: type[Request] = Request,
) -> Iterator[list[Request]]:
    """The first `count` requests of a table, made some thousands at a time as they are needed."""
    by_class = instance_priorities(slo_priorities)
    unknown = sorted(set(table.slo_class.names) - set(by_class))
    if unknown:
        raise InputError(
            "SLO class without a priority",
            key="slo_class",
            value=unknown[0],
            fix=f"use one of {', '.join(filter(None, by_class))}, or give it a priority in slo_priorities",
        )
    priority_of_code = np.array([by_class[name] for name in table.slo_class.names])
    keys_of = KeySpace(block_size).keys
    contents = table.contents
    for first in range(0, count, _CHUNK):
        part = slice(first, min(first + _CHUNK, count))
        rows = range(part.start, part.stop)
        yield list(
            map(
                kind,
                table.ids(part),
                table.arrival_ns[part].tolist(),
                table.prompt_tokens[part].tolist(),
                table.output_tokens[part].tolist(),
                table.max_tokens[part].tolist(),
                priority_of_code[table.slo_class.codes[part]].tolist(),
                table.deadline_ns[part].tolist(),
                [keys_of(contents[i]) if i >= 0 else () for i in table.content[part].tolist()],
                rows,
            )
        )
