"""A whole run: the parts of a cluster, put together, and requests on their way through them.

source -> gateway (admission, flow control) -> dispatcher (router) -> instance -> recorder -> source, if it
listens
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np
from simpy import Environment

from blis_py.cluster.admission import AdmissionSettings
from blis_py.cluster.autoregressive_kind import Autoregressive
from blis_py.cluster.dice import Dice
from blis_py.cluster.dispatcher import Dispatcher, Progress
from blis_py.cluster.entrance import Entrance
from blis_py.cluster.events import EventQueue
from blis_py.cluster.gateway import Gateway
from blis_py.cluster.instance import Instance
from blis_py.cluster.outlook import Outlook
from blis_py.cluster.policies import policy
from blis_py.cluster.recorder import Recorder
from blis_py.cluster.router import RouterSetup
from blis_py.cluster.signals import Signals
from blis_py.cluster.source import Maker, Send, Source, TableSource
from blis_py.cluster.timeline import Timeline
from blis_py.cluster.watch import Watch
from blis_py.core.config import SchedulerConfig
from blis_py.core.request import NEVER_NS, Request
from blis_py.errors import InputError
from blis_py.latency.base import LatencyModel
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import RequestTable

if TYPE_CHECKING:
    from blis_py.cluster.diffusion import BlockDiffusion
    from blis_py.cluster.flow_settings import FlowSettings

_ROUTER_STREAM = 0x726F757465
"""Sets the router's random stream apart from those of the workload under the same seed."""


class Kind(Protocol):
    """A kind of requests: what serves them, and who takes notes."""

    request: type[Request]

    def recorder(self, table: RequestTable, on_the_way_ns: int) -> Recorder: ...

    def instance(self, timeline: Timeline, recorder: Recorder, outlook: Outlook) -> Instance: ...


@contextmanager
def _without_garbage_collector() -> Iterator[None]:
    """A run makes no cycles; the collector would only walk requests and free blocks again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_without_garbage_collector()
def simulate(
    demand: RequestTable | Source,
    *,
    scheduler: SchedulerConfig,
    latency: LatencyModel,
    num_instances: int = 1,
    routing_policy: str = "round-robin",
    routing_scorers: Mapping[str, float] | None = None,
    admission_policy: str = "always-admit",
    admission: AdmissionSettings | None = None,
    flow_control: FlowSettings | None = None,
    admission_latency_ns: int = 0,
    routing_latency_ns: int = 0,
    snapshot_refresh_ns: int = 50_000_000,
    cache_delay_ns: int = 50_000_000,
    seed: int = 42,
    horizon_ns: int | None = None,
    slo_priorities: Mapping[str, int] | None = None,
    served_models: Collection[str] | None = None,
    diffusion: BlockDiffusion | None = None,
    record_steps: bool = False,
    record_decisions: int | None = None,
    single_step: bool = False,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> RunRecord:
    """Serves requests on `num_instances` identical instances.

    Args:
        demand: the requests, or a source that sends them.
        routing_scorers: weights by name, of the `weighted` policy; None = its default profile.
        admission: what the admission policy is told; None = its defaults.
        flow_control: how requests wait at the gateway; None = they do not.
        snapshot_refresh_ns: how old the load an instance reports to the router may get.
        cache_delay_ns: the same for what its prefix cache holds.
        seed: of the router's random ties.
        horizon_ns: end of the run; requests arriving later are not part of it. None = until the
            last request has ended.
        slo_priorities: cluster-side priorities of SLO classes that replace the defaults.
        served_models: what the instances answer to; who asks for another model is rejected at routing. A
            request without model goes anywhere. None = they answer to every name.
        diffusion: the requests fill blocks by denoising; None = they are autoregressive.
        record_steps: keep the compact steps table.
        record_decisions: keep what the router knew at each decision, of so many candidates; 0 = of all.
        single_step: simulate every decode step by itself. Slower, same result.
        progress: called with (requests ended, requests in all).
        watch: sees every step, and costs what it does with them.

    Raises:
        InputError: an unknown admission or routing policy or scorer, no instances, an SLO class without a
            priority, times that go beyond the clock.
    """
    if num_instances < 1:
        raise InputError("must be at least 1", key="num_instances", value=num_instances)
    rules = admission or AdmissionSettings()
    delays_ns = admission_latency_ns, routing_latency_ns
    entrance = Entrance(admission_policy, rules, flow_control, *delays_ns, slo_priorities)
    new_router = policy(routing_policy)
    kind = _kind(diffusion, scheduler, latency, record_steps, single_step, watch)
    source = _source(demand, horizon_ns, entrance.first_ns)

    env = Environment()
    outlook = Outlook(NEVER_NS if horizon_ns is None else horizon_ns, none_ahead=single_step)
    events = EventQueue(env)
    timeline = Timeline(events, outlook)
    recorder = kind.recorder(source.table, sum(delays_ns))
    instances = [kind.instance(timeline, recorder, outlook) for _ in range(num_instances)]
    signals = Signals(instances, snapshot_refresh_ns, cache_delay_ns, timeline, outlook)
    router = new_router(
        RouterSetup(
            signals,
            Dice(np.random.default_rng([seed, _ROUTER_STREAM])),
            tuple((routing_scorers or {}).items()),
            None if source.table.session is None else source.table.session.data,
        )
    )
    log = None
    if record_decisions is not None:
        from blis_py.cluster.decisions import DecisionLog

        log = DecisionLog(signals, router, record_decisions, len(source.table))
    unserved = _unserved(source.table, served_models)
    dispatch = Dispatcher(instances, router, signals, recorder, outlook, log, progress, unserved)
    slots = num_instances * scheduler.max_num_seqs
    gateway, *queues = entrance.built(events, source, signals, instances, slots, dispatch, outlook, recorder)
    outlook.over(gateway, *queues)
    make = Maker(source.table, scheduler.block_size, slo_priorities, kind.request)
    source.start(env, make, _way_in(source, recorder, gateway), outlook.is_open)

    end_ns = _run(env, instances, horizon_ns)
    recorder.decisions = None if log is None else log.record()
    dispatch.report(len(source.table))
    outlook.over()  # the parts hold one another, and the instances with their KV pools
    del instances, signals, router, log, dispatch, gateway, queues
    return recorder.record(end_ns)


def _unserved(table: RequestTable, served_models: Collection[str] | None) -> frozenset[int]:
    """Rows of requests for models that nobody serves."""
    if served_models is None:
        return frozenset()
    foreign = np.array([bool(name) and name not in served_models for name in table.model.names])
    return frozenset(np.flatnonzero(foreign[table.model.codes]).tolist()) if foreign.any() else frozenset()


def _way_in(source: Source, recorder: Recorder, gateway: Gateway) -> Send:
    """Where the source sends to."""
    if not source.listens:
        return gateway.receive
    recorder.listen(source.ended)

    def noted(requests: Sequence[Request]) -> None:
        recorder.sent(requests)
        gateway.receive(requests)

    return noted


def _run(env: Environment, instances: Sequence[Instance], horizon_ns: int | None) -> int:
    """Lets time pass until all is done, or until the horizon; returns when that was."""
    with _within_the_clock():
        env.run(until=None if horizon_ns is None else horizon_ns + 1)
    end_ns = max(i.now_ns for i in instances) if horizon_ns is None else horizon_ns
    for instance in instances:
        instance.stop(end_ns)
    return end_ns


def _source(demand: RequestTable | Source, horizon_ns: int | None, delay_ns: int) -> Source:
    """Requests that would arrive after the horizon are not part of the run."""
    if not isinstance(demand, RequestTable):
        return demand
    if horizon_ns is None:
        return TableSource(demand)
    arriving = int(np.searchsorted(demand.arrival_ns, horizon_ns, side="right"))
    return TableSource(demand.take(slice(0, arriving)), horizon_ns - delay_ns)


def _kind(
    diffusion: BlockDiffusion | None,
    scheduler: SchedulerConfig,
    latency: LatencyModel,
    record_steps: bool,
    single_step: bool,
    watch: Watch | None,
) -> Kind:
    if diffusion is None:
        return Autoregressive(scheduler, latency, record_steps, single_step, watch)
    from blis_py.cluster.diffusion import Diffusion  # costs importing only those who need it

    return Diffusion(scheduler, latency, diffusion, record_steps, single_step, watch)


@contextmanager
def _within_the_clock() -> Iterator[None]:
    """Times are 64-bit nanoseconds."""
    try:
        yield
    except OverflowError as error:
        problem = "the run goes on for longer than a century, which is beyond the clock"
        raise InputError(problem, fix="look for a step time or an arrival that is far too large") from error
