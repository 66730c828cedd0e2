"""All simulation inputs, resolved from a configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from blis_py.config.effects import useless_notes
from blis_py.config.layers import did_you_mean
from blis_py.config.loader import as_dict, pool_configs
from blis_py.config.models import RunConfig
from blis_py.core.config import SchedulerConfig, stored
from blis_py.core.light_dataclass import dataclass
from blis_py.errors import InputError
from blis_py.latency.base import LatencyModel
from blis_py.latency.notes import domain_notes, forget
from blis_py.metrics.record import RunRecord
from blis_py.metrics.registry import main
from blis_py.metrics.slo import (
    GoodputTargets,
    parse_class_targets,
    parse_goodput,
    parse_slos,
    require_known_classes,
)
from blis_py.requests.table import RequestTable
from blis_py.setup import kinds
from blis_py.setup._capacity import kv_type_notes, longest_sequence
from blis_py.setup._served import names_of, served_models, served_notes
from blis_py.setup.demand import Demand, horizon_ns_of
from blis_py.setup.deployment import Deployment, deployed
from blis_py.setup.disaggregation import disaggregation, link_notes, links
from blis_py.setup.from_config import DEFAULT_SEED, demand
from blis_py.setup.gateway import flow_notes
from blis_py.setup.pools import PoolSetup, deployed_pool, notes_of, weight_notes
from blis_py.setup.step_times import step_times

if TYPE_CHECKING:
    from blis_py.cluster.ingress.closed_loop import ClosedLoops
    from blis_py.cluster.instances.kinds import KindOfRequests
    from blis_py.cluster.recording.observer import Observer
    from blis_py.cluster.topology import Cluster
    from blis_py.requests.loops import Loops

Progress = Callable[[int, int], None]
"""Progress callback with the numbers of ended and of all requests."""


@dataclass(frozen=True, eq=False, repr=False)
class Setup:
    """Resolved simulation inputs, before the run."""

    config: RunConfig
    table: RequestTable
    pools: tuple[PoolSetup, ...]
    """A single pool if the configuration has none."""
    targets: GoodputTargets
    """Goodput targets of a request."""
    notes: tuple[str, ...] = ()
    """Notes the user should read before trusting the result."""
    source: str = ""
    """Which format a recorded trace was taken for, and why."""
    kind: KindOfRequests | None = None
    """None = the requests are autoregressive."""
    loops: Loops | None = None
    """Closed-loop clients, which wait for answers before sending more; None = none."""
    served_models: frozenset[str] | None = None
    """Model names that requests may name; None = any."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.table):,} requests; {self.models})"

    @classmethod
    def of(cls, config: RunConfig, demand_of: Callable[[RunConfig], Demand] = demand) -> Self:
        """Resolve a configuration.

        Args:
            demand_of: source of a configuration's requests, for instance one with a cache.

        Raises:
            InputError: something unknown, contradictory, or impossible (a model that does not fit).
        """
        if config.seed is None and config.workload.spec is None:
            config = replace(config, seed=DEFAULT_SEED)
        targets = stated_targets(config)
        disaggregation(config)  # refuses names that lead nowhere
        apart = config.is_disaggregated
        served = [(pool, deployed_pool(pool, own, apart)) for pool, own in pool_configs(config)]
        deployments = [one for _, one in served]
        config = _with_model(config, deployments)
        sized = [longest_sequence(one.config, one.shape, one.num_kv_blocks, one.pages) for one in deployments]
        requested = demand_of(config)
        _refuse_handover(config, requested)
        if config.horizon is None and requested.horizon_ns is not None:
            config = replace(config, horizon=requested.horizon_ns // 1000)
        pools = tuple(
            PoolSetup.of(pool, one, longest, requested)
            for (pool, one), (longest, _) in zip(served, sized, strict=True)
        )
        kind = kinds.simulated(requested, config, [pool.scheduler for pool in pools])
        _refuse_weights(config, kind)
        names = served_models(requested, [one.config for one in deployments])
        return cls(
            config=config,
            table=requested.table,
            pools=pools,
            targets=targets_of(config, requested, targets),
            notes=_notes(config, requested, pools, deployments, [notes for _, notes in sized], names),
            source=requested.source,
            kind=kind,
            loops=requested.loops,
            served_models=names,
        )

    @property
    def scheduler(self) -> SchedulerConfig:
        """Scheduler settings of the only pool; see `only`."""
        return self.only.scheduler

    @property
    def block_size(self) -> int:
        """Tokens per KV block, alike in all pools."""
        return self.pools[0].scheduler.block_size

    @property
    def latency(self) -> LatencyModel:
        """Latency model of the only pool; see `only`."""
        return self.only.latency

    @property
    def only(self) -> PoolSetup:
        """The only pool.

        Raises:
            InputError: there are several pools.
        """
        if len(self.pools) > 1:
            fix = "use a configuration of alike instances, without pools"
            raise InputError(f"not supported yet for {len(self.pools)} pools", key="pools", fix=fix)
        return self.pools[0]

    @property
    def capacity(self) -> str:
        """KV capacity, in a line for each pool."""
        if len(self.pools) == 1:
            return self.pools[0].capacity
        return "\n".join(f"{pool.name}: {pool.capacity}" for pool in self.pools)

    @property
    def offered_per_s(self) -> float | None:
        """Mean arrival rate of the requests; None in closed loops, which depend on answers."""
        arrival_ns = self.table.arrival_ns
        span_s = (
            float(arrival_ns[-1] - arrival_ns[0]) / 1e9 if len(arrival_ns) and self.loops is None else 0.0
        )
        return (len(arrival_ns) - 1) / span_s if span_s else None

    @property
    def basis(self) -> str:
        """The basis of the figures, in a line for the memory and one for engine and step times."""
        several = len(self.pools) > 1
        named = [(f"{pool.name}: " if several else "", pool) for pool in self.pools]
        memory = "; ".join(f"{name}{pool.capacity.partition(' (')[0]}" for name, pool in named)
        engines = "; ".join(f"{name}{pool.basis(self.kind)}" for name, pool in named)
        return f"{memory}\n{engines} (-v and summary.json say more)"

    def schedulers(self) -> dict[str, Any]:
        """Resolved scheduler settings as stored in results; by pool if there are several."""
        if len(self.pools) == 1:
            return {"scheduler": stored(self.scheduler)}
        return {"schedulers": {pool.name: stored(pool.scheduler) for pool in self.pools}}

    def with_pool(self, **changes: Any) -> Self:
        """A copy with another scheduler or latency model of the only pool."""
        return replace(self, pools=(replace(self.only, **changes),))

    def with_latencies(self, models: Sequence[LatencyModel]) -> Self:
        """A copy whose pools have other latency models, one for each."""
        changed = zip(self.pools, models, strict=True)
        return replace(self, pools=tuple(replace(pool, latency=latency) for pool, latency in changed))

    def priced_by(self, model: str) -> Self:
        """A copy under another latency model that needs only the model and the GPU.

        Raises:
            InputError: the latency model does not apply, or there are several pools.
        """
        config = replace(self.config, latency=self.config.latency.under(model))
        latency, _ = step_times(deployed(config), self.table, self.scheduler, self.kind is None)
        return replace(self.with_pool(latency=latency, config=config), config=config)

    def busiest(self, count: int) -> Self:
        """A copy with only `count` requests, from the period of highest demand.

        The first ones are used where arrivals depend on answers, or where requests carry individually drawn
        numbers.
        """
        if self.loops is not None:
            return replace(self, loops=self.loops.limited(count))
        begin = 0 if self.kind is not None else self.table.busiest(count)
        return replace(self, table=self.table.take(slice(begin, begin + count)))

    @property
    def models(self) -> str:
        """One-line description of the model, and of the basis of its step times."""
        if len(self.pools) == 1:
            return f"models {self.only.models(self.kind)}"
        return "models " + "; ".join(f"{pool.name}: {pool.models(self.kind)}" for pool in self.pools)

    def simulate(
        self, record_steps: bool, progress: Progress | None, observer: Observer | None = None
    ) -> tuple[RunRecord, tuple[str, ...]]:
        """Simulate; return the outcomes of all requests, and notes in addition to `notes`.

        Args:
            observer: observer of every step.
        """
        from blis_py.cluster.simulation import simulate

        record = simulate(
            self._source(), self.cluster(), **self.options(record_steps), progress=progress, observer=observer
        )
        record.config = as_dict(self.config)
        return record, self.domain_notes()

    def options(self, record_steps: bool) -> dict[str, Any]:
        """Options of the simulation that follow from the configuration; begins its notes anew."""
        config = self.config
        keeps = config.routing.trace_level == "decisions"
        for pool in self.pools:
            forget(pool.latency)
        return {
            "seed": DEFAULT_SEED if config.seed is None else config.seed,
            "horizon_ns": horizon_ns_of(config),
            "kind": self.kind,
            "record_steps": record_steps,
            "record_decisions": config.routing.counterfactual_k if keeps else None,
        }

    def domain_notes(self) -> tuple[str, ...]:
        """Notes on steps outside what the latency models know, after a simulation."""
        return tuple(notes_of(self.pools, [domain_notes(pool.latency) for pool in self.pools]))

    def cluster(self) -> Cluster:
        """The cluster as data."""
        from blis_py.cluster.topology import Cluster, Ingress

        config = self.config
        ingress = Ingress(
            admission_policy=config.admission.policy,
            admission=config.admission,
            flow_control=config.gateway if config.gateway.flow_control else None,
            routing_policy=config.routing.policy,
            routing_scorers=config.routing.scorers,
            admission_latency_ns=config.admission.latency_us * 1000,
            routing_latency_ns=config.routing.latency_us * 1000,
            snapshot_refresh_ns=config.routing.snapshot_refresh_interval_us * 1000,
            cache_delay_ns=config.routing.cache_signal_delay_us * 1000,
            slo_priorities=config.admission.slo_priorities or None,
            served_models=self.served_models,
        )
        apart = disaggregation(config)
        return Cluster(
            pools=tuple(
                pool.as_data(models, config.routing.capacity_weights)
                for pool, models in zip(self.pools, self._models(), strict=True)
            ),
            links=() if apart is None else links(config, self.pools),
            ingress=ingress,
            disaggregation=apart,
        )

    def _models(self) -> list[frozenset[str] | None]:
        """Names of each pool's model in the requests; None if all pools serve one model."""
        configs = [pool.config for pool in self.pools]
        if len({(one.model, one.model_config) for one in configs}) == 1:
            return [None] * len(configs)
        return [names_of(self.table, one) for one in configs]

    def _source(self) -> RequestTable | ClosedLoops:
        """The requests as an open-loop table, or as closed loops."""
        loops = self.closed_loops()
        if loops is None:
            return self.table
        from blis_py.cluster.ingress.closed_loop import ClosedLoops

        return ClosedLoops(self.table, loops)

    def closed_loops(self) -> Loops | None:
        """The closed loops of the requests: those of the workload, or one of `--concurrency`."""
        load = self.config.workload
        if self.loops is not None or load.concurrency is None:
            return self.loops
        from blis_py.requests.loops import Loop, Loops

        as_blis = load.closed_loops == "blis"
        think_ns = round((load.think_time_ms or 0.0) * 1e6)
        paced = load.rate is not None or load.trace is not None or not as_blis
        return Loops([Loop(slice(0, len(self.table)), load.concurrency, think_ns, paced)], as_blis=as_blis)


def _with_model(config: RunConfig, served: Sequence[Deployment]) -> RunConfig:
    """The configuration with the model of its instances, which may come from a fitted profile."""
    if not config.all_pools:
        return served[0].config
    return replace(config, model=config.model or served[0].config.model)


def _refuse_handover(config: RunConfig, requested: Demand) -> None:
    if requested.kinds and config.is_disaggregated:
        problem = f"no engine hands over {kinds.title(requested)}"
        raise InputError(problem, key="disaggregation", fix="use instances that do both")


def _refuse_weights(config: RunConfig, kind: KindOfRequests | None) -> None:
    if kind is not None and config.routing.capacity_weights:
        problem, fix = "is not modelled for block diffusion", "give each pool a weight"
        raise InputError(problem, key="--capacity-weights", fix=fix)


def _notes(
    config: RunConfig,
    requested: Demand,
    pools: Sequence[PoolSetup],
    deployments: Sequence[Deployment],
    of_lengths: Sequence[Sequence[str]],
    names: frozenset[str] | None,
) -> tuple[str, ...]:
    """Notes that the user should read before trusting the result.

    Args:
        of_lengths: notes on the longest sequence of each pool.
        names: model names that requests may name; None = any.
    """
    beforehand = [
        (
            *kv_type_notes(one.config, one.shape, pool.scheduler, requested, pool.section.count),
            *pool.hardware_notes,
            *more,
        )
        for pool, one, more in zip(pools, deployments, of_lengths, strict=True)
    ]
    return (
        *notes_of(pools, beforehand),
        *requested.notes,
        *notes_of(pools, [pool.host_notes for pool in pools]),
        *served_notes(requested, names, [one.config for one in deployments]),
        *flow_notes(config.gateway),
        *useless_notes(config),
        *link_notes(config, pools),
        *weight_notes(pools, config.routing.capacity_weights),
    )


def stated_targets(config: RunConfig) -> GoodputTargets:
    """Goodput targets of the configuration itself.

    Raises:
        InputError: not a target.
    """
    targets = parse_goodput(config.goodput)
    for metric, text in config.goodput_by_class.items():
        if metric not in (known := [each.name for each in main()]):
            fix = did_you_mean(metric, known)
            raise InputError("unknown metric", key=f"goodput_by_class.{metric}", fix=fix)
        targets = targets.merged(parse_class_targets(metric, text))
    return targets


def targets_of(config: RunConfig, requested: Demand, targets: GoodputTargets) -> GoodputTargets:
    """Goodput targets including those of the requests, for classes that occur.

    Raises:
        InputError: a target of an unknown class.
    """
    classes = requested.table.slo_class.names
    targets = requested.targets.under(targets, classes)
    named = [*targets.limits_ns, *(c.slo_class for c in parse_slos(config.slo) if c.slo_class)]
    require_known_classes(named, classes)
    return targets
