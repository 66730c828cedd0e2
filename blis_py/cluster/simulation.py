"""A whole run: the parts of a cluster assembled, and the flow of requests through them.

source -> gateway (admission, flow control) -> dispatcher (router) -> instance -> recorder -> source, if it
listens
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from blis_py.cluster.ingress.early_ends import EarlyEnds
from blis_py.cluster.ingress.parts import IngressParts
from blis_py.cluster.ingress.source import RequestFactory, Send, Source, TableSource
from blis_py.cluster.instances.autoregressive_kind import Autoregressive
from blis_py.cluster.instances.fleet import Fleet, Membership
from blis_py.cluster.instances.fleet_view import FleetView
from blis_py.cluster.instances.instance import Instance
from blis_py.cluster.instances.kinds import Kind, KindOfRequests
from blis_py.cluster.instances.outlet import NoLookahead, Outlet
from blis_py.cluster.recording.observer import Observer
from blis_py.cluster.routing.dispatcher import Dispatcher, Progress
from blis_py.cluster.routing.model_dispatcher import ModelDispatcher
from blis_py.cluster.routing.policies import policy
from blis_py.cluster.routing.rng import Rng
from blis_py.cluster.routing.router import CountedTurns, Router, RouterSetup
from blis_py.cluster.routing.signals import Signals
from blis_py.cluster.time.clock import SimClock
from blis_py.cluster.time.events import Action
from blis_py.cluster.time.fleet_events import FleetEvents
from blis_py.cluster.time.lookahead import Lookahead, LookaheadSource
from blis_py.cluster.time.wakeups import WakeupQueue
from blis_py.cluster.topology import Cluster, Pool
from blis_py.core.request import NEVER_NS, Request
from blis_py.errors import InputError
from blis_py.metrics.record import INSTANCE_FAILED, RunRecord
from blis_py.requests.table import RequestTable

if TYPE_CHECKING:
    from blis_py.cluster.instances.handoff import HandOff
    from blis_py.cluster.routing.decisions import DecisionLog
    from blis_py.cluster.routing.pairing import Pairing
    from blis_py.metrics.decisions import Decisions

_Kind = TypeVar("_Kind", bound=Dispatcher)
_REACH_OF_HANDOVERS = 64
"""Nearly every run of steps on a decode instance is truncated, and pricing a short one costs as much."""
_ROUTER_STREAM = 0x726F757465
"""Separates the router's random stream from those of the workload under the same seed."""


@contextmanager
def _without_garbage_collector() -> Iterator[None]:
    """Disable the garbage collector: a run creates no cycles, and collection would only walk live requests
    and blocks."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class ClusterSimulation:
    """The parts of a run, assembled; `run` advances time.

    Args:
        demand: the requests, or a source that sends them.
        seed: of the router's random ties.
        horizon_ns: end of the run; requests arriving later are not part of it. None = until the
            last request has ended.
        kind: of the requests; None = they are autoregressive.
        record_steps: keep the compact steps table.
        record_decisions: keep the state visible to the router at each decision, for this many candidates; 0 =
            all.
        single_step: simulate every decode step by itself. Slower, same result.
        progress: called with (requests ended, requests in all).
        observer: observer of every step.

    Attributes:
        env: SimPy's clock.
        events: the event queue on it.
        fleet: the instances; they can be added and drained in the events of `call_at`.
        signals: instance state as seen from outside.
        dispatcher: from the gateway to an instance.
        recorder: the columns of the record.
        handoff: between prefill and decode instances; None if they are not apart.

    Raises:
        InputError: an unknown admission or routing policy or scorer, an SLO class without a priority, a part
            of the cluster that is not supported yet.
    """

    def __init__(
        self,
        demand: RequestTable | Source,
        cluster: Cluster,
        *,
        seed: int = 42,
        horizon_ns: int | None = None,
        kind: KindOfRequests | None = None,
        record_steps: bool = False,
        record_decisions: int | None = None,
        single_step: bool = False,
        progress: Progress | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.handoff = handoff = _handoff(cluster)
        if handoff is not None:
            cluster = handoff.fitted(cluster)
        ingress = cluster.ingress
        ingress_parts = IngressParts(ingress)
        how = (record_steps, single_step, observer)
        served: Kind = Autoregressive(*how) if kind is None else kind.served(*how)
        self.cluster, self._seed, self._horizon_ns = cluster, seed, horizon_ns
        self.source = source = _source(demand, horizon_ns, ingress_parts.first_ns)
        table = source.table

        self.env = env = SimClock()
        last_ns = NEVER_NS if horizon_ns is None else horizon_ns
        self.lookahead = lookahead = Lookahead(last_ns, none_ahead=single_step)
        self.events = events = env.events
        self.wakeups = wakeups = WakeupQueue(events, lookahead)
        on_the_way_ns = ingress.admission_latency_ns + ingress.routing_latency_ns
        self.recorder = recorder = served.recorder(table, cluster.frontend, on_the_way_ns)
        self._fleet_events = FleetEvents(events)
        self.fleet = fleet = Fleet(
            cluster, lambda pool: served.instance(pool, wakeups, recorder, lookahead), self._fleet_events
        )
        self._dispatchers: dict[str, Dispatcher] = {}
        entered = [pool.name for pool in cluster.pools if pool.role != "decode"]
        members: Membership = fleet
        if handoff is not None:
            members = FleetView(fleet, [pool.name for pool in cluster.pools if pool.role != "prefill"])
        elif len(entered) < len(cluster.pools):
            members = FleetView(fleet, entered)
        decode = None if handoff is None else next(p for p in cluster.pools if p.role != "prefill")
        self.signals, self.router = signals, router = self._routing(members, decode)
        self._kept_candidates = record_decisions
        self._logs: list[DecisionLog] = []
        """Logs of routing decisions: one for each router among instances of a model, if they are recorded."""
        unserved = _unserved(table, ingress.served_models)
        self.dispatcher = dispatcher = _dispatcher_type(handoff)(
            members, router, signals, recorder, lookahead, self._log(signals, router), progress, unserved
        )
        self._pairing = None if handoff is None else self._pair(handoff, dispatcher)
        by_model = self._by_model()
        self._dispatch = dispatch = (
            ModelDispatcher(dispatcher, by_model, table.model.codes) if by_model else dispatcher
        )
        seen = signals if members is fleet else self._signals(fleet)
        self.gateway, *queues = ingress_parts.built(
            events, source, seen, fleet, dispatch, lookahead, recorder, self.evict, self._counted_twice
        )
        self._parts: list[LookaheadSource] = [self.gateway, *queues]
        self._request_factory = RequestFactory(
            table, cluster.block_size, ingress.slo_priorities, served.request
        )

    def call_at(self, time_ns: int, action: Action) -> None:
        """Call `action` with the time, at that time, before all other events of the same nanosecond.

        A run that begins with such an event has no lookahead, and its events may schedule others.

        Raises:
            InputError: the time has passed, or the run has begun without any event.
        """
        self._fleet_events.call_at(time_ns, action)

    def fail(self, index: int) -> None:
        """End an instance now: its requests fail with the step in progress, and its KV is lost.

        To be called in an event of `call_at`.

        Raises:
            InputError: no such instance, or it is draining or gone already.
        """
        self.fleet.drain(index)
        on_the_way = set[int]() if self.handoff is None else self.handoff.lose(index)
        instance = self.fleet.instances[index]
        for request in instance.requests:
            if request.row in on_the_way:
                continue
            self.recorder.evicted(request, INSTANCE_FAILED)
            instance.cancel(request, self.events.now_ns)

    def evict(self, request: Request, why: str, now_ns: int) -> bool:
        """Evict a request in flight from the instance where it is, whichever visit that is.

        It leaves at the end of the step in progress.

        Args:
            request: as it arrived.

        Returns:
            False if it is at no instance, since it is between two visits or has ended.
        """
        row = request.row
        if self.handoff is not None and self.handoff.evict(row, why):
            return True
        visit = self.recorder.latest_visit(row)
        index = int(self.recorder.instance[visit])
        if index < 0:
            return False
        instance = self.fleet.instances[index]
        if visit != request.visit:
            latest = next((one for one in instance.requests if one.row == row), None)
            if latest is None:
                return False
            request = latest
        instance.cancel(request, now_ns)
        self.recorder.evicted(request, why)
        return True

    def _counted_twice(self) -> int:
        """Requests in flight at two instances, as both count them."""
        return 0 if self.handoff is None else self.handoff.counted_twice

    def connect(self, pool: str, outlet: Outlet) -> None:
        """Connect the instances of a pool to an outlet for requests whose visit has ended; before the run.

        Such a run has no lookahead: a visit may begin anywhere, at any time.

        Raises:
            InputError: no such pool.
        """
        self.fleet.connect(pool, outlet)
        self._parts.append(NoLookahead())

    def send_on(self, request: Request, pool: str, time_ns: int) -> None:
        """Open the next visit of a request and dispatch it to an instance of a pool at a time.

        Args:
            request: as `Request.next_visit` returns it; its latest visit has ended.
            time_ns: not earlier than now.

        Raises:
            InputError: no such pool.
        """
        dispatch = self._dispatcher_to(pool)
        self.recorder.revisit(request, time_ns + self.cluster.frontend.before_enqueue_ns)
        self.events.call_at(time_ns, lambda now_ns: dispatch([(now_ns, request)]))

    def _dispatcher_to(self, pool: str) -> Dispatcher:
        dispatcher = self._dispatchers.get(pool)
        if dispatcher is None:
            dispatcher = self._dispatcher_of([self.cluster.pool(pool)], Dispatcher, onward=True)
            self._dispatchers[pool] = dispatcher
        return dispatcher

    def _dispatcher_of(self, pools: Sequence[Pool], kind: type[_Kind], onward: bool = False) -> _Kind:
        """A dispatcher among the instances of pools.

        Args:
            onward: for visits after the first, whose choice is not recorded.
        """
        members = FleetView(self.fleet, [pool.name for pool in pools])
        signals, router = self._routing(members, pools[0])
        log = None if onward else self._log(signals, router)
        return kind(members, router, signals, self.recorder, self.lookahead, log)

    def _log(self, signals: Signals, router: Router) -> DecisionLog | None:
        """A log of a router's decisions, if they are recorded."""
        if self._kept_candidates is None:
            return None
        from blis_py.cluster.routing.decisions import DecisionLog

        log = DecisionLog(signals, router, self._kept_candidates, len(self.source.table))
        self._logs.append(log)
        return log

    def _pair(self, handoff: HandOff, everywhere: Dispatcher) -> Pairing:
        """Connect the hand-over between the two sides."""
        from blis_py.cluster.routing.pair_dispatcher import PairDispatcher
        from blis_py.cluster.routing.pairing import Pairing

        def routing_of(pools: Sequence[Pool]) -> tuple[Signals, Router]:
            return self._routing(FleetView(self.fleet, [pool.name for pool in pools]), pools[0])

        assert isinstance(everywhere, PairDispatcher)
        dispatcher_of = partial(self._dispatcher_of, kind=PairDispatcher)
        pairing = Pairing(handoff, self.fleet, everywhere, dispatcher_of, routing_of)
        handoff.connect(self.events, self.fleet, self.recorder, pairing.decode_beside)
        self.lookahead.hands_over = True
        self.lookahead.min_reach = _REACH_OF_HANDOVERS
        return pairing

    def _by_model(self) -> dict[int, Dispatcher]:
        """Dispatchers among the instances of each model, by the code of its names."""
        groups, table = self.cluster.groups, self.source.table
        if len(groups) == 1 and groups[0][0].models is None:
            return {}
        paired = {} if self._pairing is None else self._pairing.dispatchers
        by_code: dict[int, Dispatcher] = {}
        for pools in groups:
            dispatcher = paired.get(pools[0].name) or self._dispatcher_of(pools, Dispatcher)
            names = pools[0].models or ()
            own = [code for code, name in enumerate(table.model.names) if name in names]
            by_code |= dict.fromkeys(own, dispatcher)
        return by_code

    def _routing(self, members: Membership, pool: Pool | None = None) -> tuple[Signals, Router]:
        """A router among instances, and the signals it reads.

        Args:
            pool: a pool behind a link, with its own routing; None = the ingress.
        """
        ingress, table = self.cluster.ingress, self.source.table
        name, scorers, stream = ingress.routing_policy, ingress.routing_scorers, [self._seed, _ROUTER_STREAM]
        if pool is not None:
            name, scorers = pool.routing_policy or name, pool.routing_scorers or scorers
            stream.append(self.cluster.pools.index(pool))
        signals = self._signals(members)
        sessions = None if table.session is None else table.session.data
        rng = Rng(np.random.default_rng(stream))
        roles = {one.role for one in members.pools}
        setup = RouterSetup(
            signals, rng, tuple((scorers or {}).items()), sessions, roles, self.recorder.notify
        )
        turns = None if self.handoff is None or (pool and pool.routing_policy) else self.handoff.turns
        if turns is not None and name == "round-robin":
            return signals, CountedTurns(setup, turns)
        return signals, policy(name)(setup)

    def _signals(self, members: Membership) -> Signals:
        ingress = self.cluster.ingress
        delays_ns = ingress.snapshot_refresh_ns, ingress.cache_delay_ns
        return Signals(members, *delays_ns, self.wakeups, self.lookahead)

    def run(self) -> RunRecord:
        """Run until all requests have ended, or to the horizon. To be called once.

        Raises:
            InputError: times that go beyond the clock; a pool that needs an outlet and has none.
        """
        self.begin()
        return self.end(_run(self.env, self.fleet.instances, self._horizon_ns))

    def begin(self) -> None:
        """Begin the run, whose events are then those of `env`. For drivers with a clock of their own.

        Raises:
            InputError: a pool that needs an outlet and has none.
        """
        self.cluster.require_supported(self.fleet.connected)
        self._fleet_events.begin()
        self.lookahead.over(*self._parts, *([self._fleet_events] if self._fleet_events.is_used else []))
        self.lookahead.dispatches_ahead = self._dispatches_ahead
        way_in = self._way_in()
        self.source.start(self.env, self._request_factory, way_in, self.lookahead.is_open)

    @property
    def _dispatches_ahead(self) -> bool:
        """Whether arrivals go to pairs of instances ahead of their time: neither admission nor a choice
        depends on the state of the cluster or on earlier ends, and no instance gets both arrivals and
        requests handed over."""
        dispatcher, handoff = self.dispatcher, self.handoff
        if handoff is None or self._fleet_events.is_used or self.lookahead.none_ahead:
            return False
        if handoff.settings.pair_order != "decode-first":
            return False
        assert self._pairing is not None
        apart = all(pool.role != "both" for pool in self.cluster.pools)
        looks = dispatcher.looks or self._pairing.looks or self.gateway.looks
        return apart and not self.source.listens and not looks

    def _way_in(self) -> Send:
        """The first stage behind the source."""
        recorder, gateway = self.recorder, self.gateway
        if not self.source.listens:
            return gateway.receive
        early = EarlyEnds(self.events, recorder, self.fleet.instances, self.source)
        recorder.listen(early.ended)
        recorder.on_eviction = early.evicted

        def noted(requests: Sequence[Request]) -> None:
            recorder.sent(requests)
            early.sent(requests)
            gateway.receive(requests)

        return noted

    def _decisions(self) -> Decisions | None:
        """The recorded decisions of all routers; the logs, which refer to the instances, are released."""
        logs, self._logs = self._logs, []
        if not logs:
            return None
        from blis_py.metrics.decisions import Decisions

        return Decisions.merged([log.record() for log in logs])

    def end(self, end_ns: int) -> RunRecord:
        """End the run at a time up to which all events have happened."""
        for instance in self.fleet.instances:
            instance.stop(end_ns)
        self.recorder.decisions = self._decisions()
        self._dispatch.report(len(self.source.table))
        self._dispatchers.clear()
        self.lookahead.over()  # the parts form a reference cycle with the instances and their KV pools
        self.fleet.close()
        if self.handoff is not None:
            self.recorder.handovers = self.handoff.record()
        record = self.recorder.record(end_ns)
        self.fleet.enter_lives(record.instances)
        return record


@_without_garbage_collector()
def simulate(demand: RequestTable | Source, cluster: Cluster, **options: Any) -> RunRecord:
    """Serve requests on a cluster.

    Args:
        demand: the requests, or a source that sends them.
        options: as `ClusterSimulation` takes them.
    """
    return ClusterSimulation(demand, cluster, **options).run()


def _handoff(cluster: Cluster) -> HandOff | None:
    """The hand-over between the pools of a cluster."""
    if cluster.disaggregation is None:
        return None
    from blis_py.cluster.instances.handoffs import handoff

    return handoff(cluster.disaggregation)


def _dispatcher_type(handoff: HandOff | None) -> type[Dispatcher]:
    if handoff is None:
        return Dispatcher
    from blis_py.cluster.routing.pair_dispatcher import PairDispatcher

    return PairDispatcher


def _unserved(table: RequestTable, served_models: Collection[str] | None) -> frozenset[int]:
    """Rows of requests for models that no instance serves."""
    if served_models is None:
        return frozenset()
    foreign = np.array([bool(name) and name not in served_models for name in table.model.names])
    return frozenset(np.flatnonzero(foreign[table.model.codes]).tolist()) if foreign.any() else frozenset()


def _run(env: SimClock, instances: Sequence[Instance], horizon_ns: int | None) -> int:
    """Run until all requests have ended, or to the horizon; returns the end time."""
    with _within_the_clock():
        env.events.run(None if horizon_ns is None else horizon_ns + 1)
    return max(i.now_ns for i in instances) if horizon_ns is None else horizon_ns


def _source(demand: RequestTable | Source, horizon_ns: int | None, delay_ns: int) -> Source:
    """The source of requests. Those that would arrive after the horizon are not part of the run."""
    if not isinstance(demand, RequestTable):
        return demand
    if horizon_ns is None:
        return TableSource(demand)
    arriving = int(np.searchsorted(demand.arrival_ns, horizon_ns, side="right"))
    return TableSource(demand.take(slice(0, arriving)), horizon_ns - delay_ns)


@contextmanager
def _within_the_clock() -> Iterator[None]:
    """Turn an overflow of 64-bit nanoseconds into an InputError.

    Raises:
        InputError: a time exceeds the range of the clock.
    """
    try:
        yield
    except OverflowError as error:
        problem = "the run goes on for longer than a century, which is beyond the clock"
        raise InputError(problem, fix="look for a step time or an arrival that is far too large") from error
