"""Everything that a simulation needs, resolved from a configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Self

from blis_py.config.engine import load_engine
from blis_py.config.layers import did_you_mean
from blis_py.config.loader import as_dict
from blis_py.config.models import RunConfig, SchedulerSection
from blis_py.core.config import SchedulerConfig
from blis_py.core.settings import extended
from blis_py.errors import InputError
from blis_py.latency.base import LatencyModel
from blis_py.latency.notes import domain_notes, forget, link_notes, model_notes
from blis_py.metrics.record import RunRecord
from blis_py.metrics.slo import (
    DIMENSIONS,
    GoodputTargets,
    parse_class_targets,
    parse_goodput,
    parse_slos,
    require_known_classes,
)
from blis_py.requests.table import RequestTable
from blis_py.setup.asked import Demand, horizon_ns_of
from blis_py.setup.capacity import longest_sequence
from blis_py.setup.demand import DEFAULT_SEED, demand
from blis_py.setup.deployment import deployed
from blis_py.setup.diffusion import block_diffusion
from blis_py.setup.gateway import admission_settings, flow_notes, flow_settings
from blis_py.setup.served import served_models, served_notes
from blis_py.setup.step_times import check_delays, step_times

if TYPE_CHECKING:
    from blis_py.cluster.closed_loop import ClosedLoops
    from blis_py.cluster.diffusion import BlockDiffusion
    from blis_py.cluster.watch import Watch
    from blis_py.requests.loops import Loops

Progress = Callable[[int, int], None]
"""Told now and then how many requests of how many have ended."""


@dataclass(frozen=True, eq=False, repr=False)
class Setup:
    """Everything resolved, nothing run yet."""

    config: RunConfig
    table: RequestTable
    scheduler: SchedulerConfig
    latency: LatencyModel
    capacity: str
    """The KV capacity, in one line."""
    targets: GoodputTargets
    """What a good request meets."""
    engine: str = "vLLM v1"
    """Whose engine this is."""
    notes: tuple[str, ...] = ()
    """What the user should know before believing the result."""
    source: str = ""
    """Which format a recorded trace was taken for, and why."""
    diffusion: BlockDiffusion | None = None
    """None = the requests are autoregressive."""
    loops: Loops | None = None
    """Clients that wait for answers before they send more; None = nobody does."""
    served_models: frozenset[str] | None = None
    """Names of models that requests may ask for; None = any."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.table):,} requests; {self.models})"

    @classmethod
    def of(cls, config: RunConfig, ask: Callable[[RunConfig], Demand] = demand) -> Self:
        """Resolves a configuration.

        Args:
            ask: what tells the requests of a configuration, where somebody has read them already.

        Raises:
            InputError: something unknown, contradictory, or impossible (a model that does not fit).
        """
        if config.seed is None and config.workload.spec is None:
            config = replace(config, seed=DEFAULT_SEED)
        targets = _targets(config)
        served = deployed(config)
        config = served.config
        max_model_len, notes = longest_sequence(config, served.shape, served.num_kv_blocks)
        asked = ask(config)
        if config.horizon is None and asked.horizon_ns is not None:
            config = replace(config, horizon=asked.horizon_ns // 1000)
        scheduler = _scheduler(config.scheduler, served.num_kv_blocks, max_model_len)
        if asked.diffusion:
            scheduler = _of_diffusion(config, scheduler)
        model, host_notes = step_times(served, asked.table, scheduler)
        check_delays(model, asked.table, max_model_len)
        names = served_models(asked, config)
        return cls(
            config=config,
            table=asked.table,
            scheduler=scheduler,
            latency=model,
            capacity=served.capacity,
            targets=_asked_of(config, asked, targets),
            engine=load_engine(config.engine).title,
            notes=(
                *model_notes(served.shape, served.gpu),
                *link_notes(served.gpu, config.tp),
                *notes,
                *asked.notes,
                *host_notes,
                *served_notes(asked, names, config),
                *flow_notes(config.gateway),
            ),
            source=asked.source,
            diffusion=block_diffusion(asked, config.dllm, scheduler),
            loops=asked.loops,
            served_models=names,
        )

    def priced_by(self, model: str) -> Self:
        """The same under another latency model that needs nothing but the model and the GPU.

        Raises:
            InputError: it does not apply.
        """
        config = replace(self.config, latency=self.config.latency.under(model))
        latency, _ = step_times(deployed(config), self.table, self.scheduler)
        return replace(self, config=config, latency=latency)

    def busiest(self, count: int) -> Self:
        """The same with so many requests alone: those that come while most is asked for.

        Where what comes depends on the answers, or the requests have numbers drawn for each, the first ones.
        """
        if self.loops is not None:
            return replace(self, loops=self.loops.limited(count))
        begin = 0 if self.diffusion is not None else self.table.busiest(count)
        return replace(self, table=self.table.take(slice(begin, begin + count)))

    @property
    def models(self) -> str:
        """What is being modelled, and what its step times rest on, in one line."""
        batches = f"{self.scheduler.scheduler} scheduler, {self.scheduler.batch_former} batches"
        if self.scheduler.prefix_cache == "radix":
            batches += ", radix prefix cache"
        if self.scheduler.async_scheduling:
            batches += ", asynchronous scheduling"
        several = "s" if self.config.num_instances > 1 else ""
        if self.diffusion is not None:
            return (
                f"models {self.config.num_instances} instance{several} of {self.diffusion.config.describe()} "
                f"({self.scheduler.scheduler} scheduler); step times: {self.latency.provenance}"
            )
        return (
            f"models {self.config.num_instances} instance{several} of {self.engine} ({batches}); "
            f"step times: {self.latency.provenance}"
        )

    def simulate(
        self, record_steps: bool, progress: Progress | None, watch: Watch | None = None
    ) -> tuple[RunRecord, tuple[str, ...]]:
        """What became of every request, and what is to be known about it beside `notes`.

        Args:
            watch: sees every step.
        """
        from blis_py.cluster.simulation import simulate

        config = self.config
        keeps = config.routing.trace_level == "decisions"
        forget(self.latency)
        record = simulate(
            self._source(),
            scheduler=self.scheduler,
            latency=self.latency,
            num_instances=config.num_instances,
            routing_policy=config.routing.policy,
            routing_scorers=config.routing.scorers,
            admission_policy=config.admission.policy,
            admission=admission_settings(config.admission),
            flow_control=flow_settings(config.gateway),
            admission_latency_ns=config.admission.latency_us * 1000,
            routing_latency_ns=config.routing.latency_us * 1000,
            snapshot_refresh_ns=config.routing.snapshot_refresh_interval_us * 1000,
            cache_delay_ns=config.routing.cache_signal_delay_us * 1000,
            seed=DEFAULT_SEED if config.seed is None else config.seed,
            horizon_ns=horizon_ns_of(config),
            slo_priorities=config.admission.slo_priorities or None,
            served_models=self.served_models,
            diffusion=self.diffusion,
            record_steps=record_steps,
            record_decisions=config.routing.counterfactual_k if keeps else None,
            progress=progress,
            watch=watch,
        )
        record.config = as_dict(config)
        return record, domain_notes(self.latency)

    def _source(self) -> RequestTable | ClosedLoops:
        """The requests as they come, or as permits allow."""
        load = self.config.workload
        if load.concurrency is None and self.loops is None:
            return self.table
        from blis_py.cluster.closed_loop import ClosedLoop, ClosedLoops

        if self.loops is not None:
            return ClosedLoops(self.table, self.loops)
        assert load.concurrency is not None
        as_blis = load.closed_loops == "blis"
        think_ns = round((load.think_time_ms or 0.0) * 1e6)
        paced = load.rate is not None or load.trace is not None or not as_blis
        return ClosedLoop(self.table, load.concurrency, think_ns, paced=paced, as_blis=as_blis)


def _scheduler(settings: SchedulerSection, num_kv_blocks: int, max_model_len: int) -> SchedulerConfig:
    kind = extended(SchedulerConfig)
    own = {f.name: getattr(settings, f.name) for f in fields(kind) if hasattr(settings, f.name)}
    resolved = {"num_kv_blocks": num_kv_blocks, "max_model_len": max_model_len, "scheduler": settings.policy}
    return kind(**own | resolved)


def _of_diffusion(config: RunConfig, scheduler: SchedulerConfig) -> SchedulerConfig:
    """Rounds of block diffusion are synchronous, whatever a preset says of other engines."""
    wanted = scheduler.async_scheduling
    if wanted and not load_engine(config.engine).settings.get("scheduler.async_scheduling"):
        fix = "drop it: FDFO with re-looping saves the time between rounds instead"
        raise InputError("has no meaning for block diffusion", key="scheduler.async_scheduling", fix=fix)
    return replace(scheduler, async_scheduling=False, late_length_stops=False)


def _targets(config: RunConfig) -> GoodputTargets:
    targets = parse_goodput(config.goodput)
    for metric, text in config.goodput_by_class.items():
        if metric not in DIMENSIONS:
            fix = did_you_mean(metric, DIMENSIONS)
            raise InputError("unknown metric", key=f"goodput_by_class.{metric}", fix=fix)
        targets = targets.merged(parse_class_targets(metric, text))
    return targets


def _asked_of(config: RunConfig, asked: Demand, targets: GoodputTargets) -> GoodputTargets:
    """With what the requests bring along; of classes that there are."""
    classes = asked.table.slo_class.names
    targets = asked.targets.under(targets, classes)
    wanted = [*targets.limits_ns, *(c.slo_class for c in parse_slos(config.slo) if c.slo_class)]
    require_known_classes(wanted, classes)
    return targets
