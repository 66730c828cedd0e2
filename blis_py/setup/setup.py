"""Everything that a simulation needs, resolved from a configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Self

from blis_py import latency
from blis_py.config.engine import load_engine
from blis_py.config.layers import did_you_mean
from blis_py.config.loader import as_dict
from blis_py.config.models import AdmissionSection, RunConfig, SchedulerSection
from blis_py.core.bounds import LAST_NS, MOST_KV_BLOCKS, check_count, clock_ns
from blis_py.core.config import SchedulerConfig
from blis_py.core.policies import CACHE_AWARE
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays, LatencyModel
from blis_py.latency.hardware import GpuSpec, load_gpu
from blis_py.latency.host_work import MaskPrices, with_host_work
from blis_py.latency.model_shape import ModelShape, config_name, load_model
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
from blis_py.requests.loops import Loops
from blis_py.requests.table import RequestTable
from blis_py.setup.capacity import capacity, longest_sequence
from blis_py.setup.demand import DEFAULT_SEED, Demand, demand, horizon_ns_of
from blis_py.setup.diffusion import block_diffusion
from blis_py.setup.gateway import flow_notes, flow_settings
from blis_py.setup.served import served_models, served_notes

if TYPE_CHECKING:
    from blis_py.cluster.admission import AdmissionSettings
    from blis_py.cluster.closed_loop import ClosedLoops
    from blis_py.cluster.diffusion import BlockDiffusion
    from blis_py.cluster.watch import Watch
    from blis_py.latency.fitted_profile import FittedProfile
    from blis_py.latency.trained import ServerTerms

Progress = Callable[[int, int], None]
"""Told now and then how many requests of how many have ended."""


@dataclass(frozen=True)
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
        served = _served(config)
        config = served.config
        max_model_len, notes = longest_sequence(config, served.shape, served.num_kv_blocks)
        asked = ask(config)
        if config.horizon is None and asked.horizon_ns is not None:
            config = replace(config, horizon=asked.horizon_ns // 1000)
        scheduler = _scheduler(config.scheduler, served.num_kv_blocks, max_model_len)
        if asked.diffusion:
            scheduler = _of_diffusion(config, scheduler)
        model, host_notes = _step_times(served, asked.table, scheduler)
        _check_delays(model, asked.table, max_model_len)
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
        latency, _ = _step_times(_served(config), self.table, self.scheduler)
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
            admission=_admission(config.admission),
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


@dataclass(frozen=True)
class _Served:
    """A model on its GPUs."""

    config: RunConfig
    """With what a fitted profile settles."""
    shape: ModelShape
    gpu: GpuSpec | None
    """None where a fitted profile was measured on something that has no datasheet."""
    profile: FittedProfile | None
    capacity: str
    num_kv_blocks: int
    """Of one instance."""


def _served(config: RunConfig) -> _Served:
    profile, gpu, line, blocks = None, None, "", 0
    if config.latency.model == "fitted":
        from blis_py.setup.measured import measured_run

        measured = measured_run(config)
        config, shape, gpu, profile = measured.config, measured.shape, measured.gpu, measured.profile
        if gpu is None:
            line, blocks = measured.capacity()
    else:
        shape, gpu = load_model(_model_name(config), config.model_config), load_gpu(config.gpu)
        if config.link_gbps is not None:
            gpu = gpu.linked_at(config.link_gbps)
    if gpu is not None:
        line, blocks = capacity(config, shape, gpu)
    check_count(
        config.num_instances * blocks,
        least=1,
        most=MOST_KV_BLOCKS,
        key="KV blocks of all instances",
        fix="use fewer instances, fewer or larger blocks",
    )
    return _Served(config, shape, gpu, profile, line, blocks)


def _admission(settings: AdmissionSection) -> AdmissionSettings:
    from blis_py.cluster.admission import AdmissionSettings

    return AdmissionSettings(**{f.name: getattr(settings, f.name) for f in fields(AdmissionSettings)})


def _model_name(config: RunConfig) -> str:
    if config.model is not None:
        return config.model
    if config.model_config is None:
        raise InputError("no model given", key="--model", fix="name one, for example --model llama-3.1-8b")
    return config_name(config.model_config)


def _latency_model(served: _Served) -> LatencyModel:
    settings = served.config.latency
    model = latency.build(
        settings.model,
        shape=served.shape,
        gpu=served.gpu,
        tp=served.config.tp,
        alpha=settings.alpha_coeffs,
        beta=settings.beta_coeffs,
        linear=settings.linear or None,
        kernel_profile=settings.kernel_profile,
        profile=served.profile,
        server=server_terms(served.config),
    )
    if served.config.frontend_ms is not None:
        model.frontend = _frontend(served.config.frontend_ms)
    return model


def server_terms(config: RunConfig) -> ServerTerms | None:
    """How the server's steps differ from those `trained` knows; what a preset says of that is of no other
    latency model."""
    gap, scale = config.latency.step_gap_us, config.latency.step_scale
    if len(gap) > 2:
        fix = "give the gap of a step, and if you like that of a sequence"
        raise InputError(
            "must be one or two numbers of us", key="latency.step_gap_us", value=list(gap), fix=fix
        )
    if scale == 1 and not any(gap):
        return None
    if config.latency.model != "trained":
        preset = load_engine(config.engine).on(config.gpu)
        own = preset.get("latency.step_scale", 1.0), tuple(preset.get("latency.step_gap_us", ()))
        if own == (scale, gap):
            return None
    from blis_py.latency.trained import ServerTerms

    step_us, seq_us = (*gap, 0.0, 0.0)[:2]
    return ServerTerms(scale, step_us * 1e3, seq_us * 1e3)


def _step_times(
    served: _Served, table: RequestTable, scheduler: SchedulerConfig
) -> tuple[LatencyModel, tuple[str, ...]]:
    """The latency model, with what the host does in some steps alone, and what is to be known of that."""
    model, profile = _latency_model(served), served.profile
    beyond_notes = _beyond(model, table, scheduler.max_model_len)
    masks, mask_notes = _mask_prices(served, table)
    scan_ns, scan_notes = _scan_price(served, scheduler)
    measured_on_gpu = profile is not None and profile.meta.get("device_kind") == "cuda"
    beside = scheduler.async_scheduling or measured_on_gpu
    model = with_host_work(model, masks, scan_ns, masks_beside=beside)
    return model, (*beyond_notes, *mask_notes, *scan_notes)


def _beyond(model: LatencyModel, table: RequestTable, max_model_len: int) -> tuple[str, ...]:
    """What of the run a model did not learn on, if it can tell."""
    beyond = getattr(model, "beyond", None)
    if beyond is None:
        return ()
    longest = int((table.prompt_tokens + table.output_tokens).max(initial=0))
    told = beyond(min(longest, max_model_len))
    return (told,) if told else ()


def _mask_prices(served: _Served, table: RequestTable) -> tuple[MaskPrices | None, tuple[str, ...]]:
    """What masks of structured outputs cost, where a request has such."""
    settings, profile = served.config.latency, served.profile
    constrained = 0 if table.constrained is None else int(table.constrained.sum())
    if not constrained:
        return None, ()
    prices = None if profile is None else profile.masks
    if settings.mask_row_us is not None or settings.mask_step_us is not None:
        prices = MaskPrices((settings.mask_row_us or 0.0) * 1e3, (settings.mask_step_us or 0.0) * 1e3)
    if prices is not None:
        return prices, ()
    share = f"{constrained:,} of {len(table):,}"
    problem = f"{share} answers are constrained by a grammar, which costs nothing here"
    return None, (f"{problem}: say what a mask costs with --mask-row-us, or give a profile that measured it",)


def _scan_price(served: _Served, scheduler: SchedulerConfig) -> tuple[float, tuple[str, ...]]:
    """What it costs to look a waiting request up in the cache, in ns, where the policy does that."""
    if scheduler.scheduler not in CACHE_AWARE:
        return 0.0, ()
    config, profile = served.config, served.profile
    told_us, preset = config.latency.scan_us, load_engine(config.engine).on(config.gpu)
    measured_ns = None if profile is None else profile.scan_ns
    if measured_ns is not None and told_us in (None, preset.get("latency.scan_us")):
        return measured_ns, ()
    if told_us is not None:
        return told_us * 1e3, ()
    problem = f"{scheduler.scheduler} looks waiting requests up in the prefix cache, which costs nothing here"
    return 0.0, (f"{problem}: say what one costs with --scan-us, or give a profile that measured it",)


def _frontend(ms: Sequence[float]) -> FrontendDelays:
    if not 1 <= len(ms) <= 3:
        fix = (
            "give the delay before the engine and, if you like, the one behind it and its growth per sequence"
        )
        raise InputError("must be one to three numbers of ms", key="frontend_ms", value=list(ms), fix=fix)
    told = (*ms, 0.0, 0.0)[:3]
    before_ns, behind_ns, seq_ns = (clock_ns(value, 10**6, key="frontend_ms") for value in told)
    return FrontendDelays(before_enqueue_ns=before_ns, behind_ns=behind_ns, behind_seq_ns=seq_ns)


def _scheduler(settings: SchedulerSection, num_kv_blocks: int, max_model_len: int) -> SchedulerConfig:
    own = {f.name: getattr(settings, f.name) for f in fields(SchedulerConfig) if hasattr(settings, f.name)}
    resolved = {"num_kv_blocks": num_kv_blocks, "max_model_len": max_model_len, "scheduler": settings.policy}
    return SchedulerConfig(**own | resolved)


def _of_diffusion(config: RunConfig, scheduler: SchedulerConfig) -> SchedulerConfig:
    """Rounds of block diffusion are synchronous, whatever a preset says of other engines."""
    wanted = scheduler.async_scheduling
    if wanted and not load_engine(config.engine).settings.get("scheduler.async_scheduling"):
        fix = "drop it: FDFO with re-looping saves the time between rounds instead"
        raise InputError("has no meaning for block diffusion", key="scheduler.async_scheduling", fix=fix)
    return replace(scheduler, async_scheduling=False, late_length_stops=False)


def _check_delays(model: LatencyModel, table: RequestTable, max_model_len: int) -> None:
    """The delays of a request's tokens add up, and the clock does not go on for ever."""
    tokens = min(int(table.output_tokens.max(initial=0)), max_model_len)
    if tokens * model.frontend.per_token_ns > LAST_NS:
        problem, fix = "the delays of one answer come to more than a century", "lower the delay per token"
        raise InputError(problem, key="alpha_coeffs", fix=fix)


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
