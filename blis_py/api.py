"""Build, run, records: the Python interface, and what the command line calls.

Keyword arguments are the flags of `blis run` (`num_instances=4`, `scheduler="priority-fcfs"`), sections
of the configuration as mappings (`latency={"model": "linear"}`), or both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_py.config import as_dict, load_config
from blis_py.config_layers import did_you_mean
from blis_py.config_models import NAMES, RunConfig, SchedulerSection
from blis_py.core.bounds import LAST_NS, MOST_KV_BLOCKS, check_count
from blis_py.core.config import SchedulerConfig
from blis_py.errors import InputError
from blis_py.latency.base import LatencyModel
from blis_py.metrics.slo import (
    DIMENSIONS,
    GoodputTargets,
    parse_class_targets,
    parse_goodput,
    parse_slos,
    require_known_classes,
)
from blis_py.result import Result
from blis_py.sources import DEFAULT_SEED, demand, horizon_ns_of
from blis_py.workload.table import RequestTable

if TYPE_CHECKING:
    from blis_py.cluster.diffusion import BlockDiffusion
    from blis_py.latency.hardware import GpuSpec
    from blis_py.latency.model_shape import ModelShape
    from blis_py.measured import Measured

Progress = Callable[[int, int], None]
"""Told now and then how many requests of how many have ended."""


@dataclass(frozen=True)
class Simulation:
    """Everything resolved, nothing run yet."""

    config: RunConfig
    table: RequestTable
    scheduler: SchedulerConfig
    latency: LatencyModel
    capacity: str
    """The KV capacity, in one line."""
    targets: GoodputTargets
    """What a good request meets."""
    notes: tuple[str, ...] = ()
    """What the user should know before believing the result."""
    diffusion: BlockDiffusion | None = None
    """None = the requests are autoregressive."""

    def __repr__(self) -> str:
        return f"Simulation({len(self.table):,} requests; {self.models})"

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
            f"models {self.config.num_instances} instance{several} of vLLM v1 ({batches}); "
            f"step times: {self.latency.provenance}"
        )

    def run(self, *, record_steps: bool = True, progress: Progress | None = None) -> Result:
        """Simulates until every request has ended, or until the horizon.

        Args:
            record_steps: keep the table of steps; without it `Result.steps` is not available.
            progress: called from time to time with (ended, all) requests.
        """
        from blis_py.cluster.simulation import simulate
        from blis_py.latency.notes import domain_notes, forget

        config = self.config
        forget(self.latency)
        record = simulate(
            self.table,
            scheduler=self.scheduler,
            latency=self.latency,
            num_instances=config.num_instances,
            routing_policy=config.routing.policy,
            admission_latency_ns=config.admission.latency_us * 1000,
            routing_latency_ns=config.routing.latency_us * 1000,
            snapshot_refresh_ns=config.routing.snapshot_refresh_interval_us * 1000,
            seed=DEFAULT_SEED if config.seed is None else config.seed,
            horizon_ns=horizon_ns_of(config),
            slo_priorities=config.admission.slo_priorities or None,
            diffusion=self.diffusion,
            record_steps=record_steps,
            progress=progress,
        )
        record.config = as_dict(config)
        return Result(record, self, (*self.notes, *domain_notes(self.latency)))


def build(config: RunConfig | str | Path | None = None, /, **settings: Any) -> Simulation:
    """Resolves a configuration: model, GPU, KV capacity, latency model, requests.

    Args:
        config: a `RunConfig`, or the path of a YAML file; the `settings` are laid over it.
        settings: what the flags of `blis run` are called, with underscores.

    Raises:
        InputError: something unknown, contradictory, or impossible (a model that does not fit).
    """
    return resolve(configure(config, **settings))


def run(config: RunConfig | str | Path | None = None, /, **settings: Any) -> Result:
    """`build(...).run()`."""
    return build(config, **settings).run()


def replay(trace: str | Path, /, **settings: Any) -> Result:
    """Simulates the requests of a trace: `run(trace=...)`."""
    return run(trace=str(trace), **settings)


def configure(config: RunConfig | str | Path | None = None, /, **settings: Any) -> RunConfig:
    """The configuration that `settings` laid over `config` make."""
    overrides = []
    for name, value in settings.items():
        if name not in NAMES:
            raise InputError("unknown setting", key=name, fix=did_you_mean(name, NAMES))
        overrides.append((name, NAMES[name], str(value) if isinstance(value, Path) else value))
    if isinstance(config, RunConfig):
        return load_config(overrides=overrides, base=config) if overrides else config
    return load_config(config, overrides)


def resolve(config: RunConfig) -> Simulation:
    from blis_py import latency
    from blis_py.dllm import block_diffusion
    from blis_py.latency.hardware import load_gpu
    from blis_py.latency.model_shape import load_model
    from blis_py.latency.notes import link_notes, model_notes

    if config.seed is None and config.workload.spec is None:
        config = replace(config, seed=DEFAULT_SEED)
    targets = _targets(config)
    measured = _measured(config)
    gpu: GpuSpec | None
    if measured is None:
        shape, gpu = load_model(_model_name(config), config.model_config), load_gpu(config.gpu)
        if config.link_gbps is not None:
            gpu = gpu.linked_at(config.link_gbps)
    else:
        config, shape, gpu = measured.config, measured.shape, measured.gpu
    if measured is None or gpu is not None:
        assert gpu is not None
        capacity, num_kv_blocks = _capacity(config, shape, gpu)
    else:
        capacity, num_kv_blocks = measured.capacity()
    check_count(
        config.num_instances * num_kv_blocks,
        least=1,
        most=MOST_KV_BLOCKS,
        key="KV blocks of all instances",
        fix="use fewer instances, fewer or larger blocks",
    )
    max_model_len, notes = _max_model_len(config, shape, num_kv_blocks)
    model = latency.build(
        config.latency.model,
        shape=shape,
        gpu=gpu,
        tp=config.tp,
        alpha=config.latency.alpha_coeffs,
        beta=config.latency.beta_coeffs,
        linear=config.latency.linear or None,
        kernel_profile=config.latency.kernel_profile,
        profile=None if measured is None else measured.profile,
    )
    asked = demand(config)
    table, scheduler = asked.table, _scheduler(config.scheduler, num_kv_blocks, max_model_len)
    _check_delays(model, table, max_model_len)
    targets = asked.targets.under(targets, table.slo_class.names)
    wanted = [*targets.limits_ns, *(c.slo_class for c in parse_slos(config.slo) if c.slo_class)]
    require_known_classes(wanted, table.slo_class.names)
    return Simulation(
        config=config,
        table=table,
        scheduler=scheduler,
        latency=model,
        capacity=capacity,
        targets=targets,
        notes=(
            *model_notes(shape, gpu),
            *link_notes(gpu, config.tp),
            *notes,
            *asked.notes,
            *_other_models(table, config),
        ),
        diffusion=block_diffusion(asked, config.dllm, scheduler),
    )


def _check_delays(model: LatencyModel, table: RequestTable, max_model_len: int) -> None:
    """The delays of a request's tokens add up, and the clock does not go on for ever."""
    tokens = min(int(table.output_tokens.max(initial=0)), max_model_len)
    if tokens * model.frontend.per_token_ns > LAST_NS:
        problem, fix = "the delays of one answer come to more than a century", "lower the delay per token"
        raise InputError(problem, key="alpha_coeffs", fix=fix)


def _measured(config: RunConfig) -> Measured | None:
    """What a fitted profile settles; None if the run has none."""
    if config.latency.model != "fitted":
        return None
    from blis_py.measured import measured_run

    return measured_run(config)


def _model_name(config: RunConfig) -> str:
    from blis_py.latency.model_shape import config_name

    if config.model is not None:
        return config.model
    if config.model_config is None:
        raise InputError("no model given", key="--model", fix="name one, for example --model llama-3.1-8b")
    return config_name(config.model_config)


def _capacity(config: RunConfig, shape: ModelShape, gpu: GpuSpec) -> tuple[str, int]:
    """The line that tells the KV capacity, and the blocks of one instance."""
    from blis_py.latency.capacity import check_tp, kv_capacity

    check_tp(shape, config.tp)
    settings = config.scheduler
    given = settings.num_kv_blocks
    try:
        computed = kv_capacity(
            shape,
            gpu,
            config.tp,
            block_size=settings.block_size,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
        )
    except InputError:
        if given is None:
            raise
        fits = "by its memory the model would not fit"
    else:
        if given is None:
            return computed.describe(), computed.blocks
        fits = f"by its memory {computed.blocks:,}"
    line = (
        f"KV capacity: {given:,} blocks of {settings.block_size} = {given * settings.block_size:,} tokens "
        f"(as given; {fits}: {shape.name} on {gpu.name} TP{config.tp})"
    )
    return line, given


def _max_model_len(config: RunConfig, shape: ModelShape, num_kv_blocks: int) -> tuple[int, list[str]]:
    """The longest sequence, and what there is to say about it."""
    from blis_py.latency.capacity import default_max_model_len

    settings = config.scheduler
    given = settings.max_model_len
    if given is None:
        return default_max_model_len(shape, num_kv_blocks, settings.block_size), []
    room = num_kv_blocks * settings.block_size
    if given > room:
        raise InputError(
            f"is more than the {room:,} tokens the KV cache holds",
            key="--max-model-len",
            value=given,
            fix=f"use at most {room}, or 0 for automatic",
        )
    limit = shape.max_position_embeddings
    return given, [f"max_model_len {given:,} is beyond the model's own {limit:,}"] if given > limit else []


def _scheduler(settings: SchedulerSection, num_kv_blocks: int, max_model_len: int) -> SchedulerConfig:
    own = {f.name: getattr(settings, f.name) for f in fields(SchedulerConfig) if hasattr(settings, f.name)}
    resolved = {"num_kv_blocks": num_kv_blocks, "max_model_len": max_model_len, "scheduler": settings.policy}
    return SchedulerConfig(**own | resolved)


def _targets(config: RunConfig) -> GoodputTargets:
    targets = parse_goodput(config.goodput)
    for metric, text in config.goodput_by_class.items():
        if metric not in DIMENSIONS:
            fix = did_you_mean(metric, DIMENSIONS)
            raise InputError("unknown metric", key=f"goodput_by_class.{metric}", fix=fix)
        targets = targets.merged(parse_class_targets(metric, text))
    return targets


def _other_models(table: RequestTable, config: RunConfig) -> list[str]:
    others = sorted(set(table.model.names) - {"", config.model})
    return [f"requests for {', '.join(others)} are served by {config.model} too"] if others else []
