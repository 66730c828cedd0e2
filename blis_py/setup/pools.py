"""Resolution of each pool: KV capacity, scheduler, latency model, and their notes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Self

from blis_py.config.engine import load_engine
from blis_py.config.models import RunConfig, SchedulerSection
from blis_py.config.pools import PoolSection, of_pool
from blis_py.core.bounds import clock_ns
from blis_py.core.config import SchedulerConfig
from blis_py.core.light_dataclass import dataclass
from blis_py.core.settings import extended
from blis_py.errors import InputError
from blis_py.hardware.capacity import rank_block_bytes
from blis_py.latency.base import LatencyModel, unbounded
from blis_py.latency.datasheet_bound import bound_notes
from blis_py.latency.notes import link_notes, model_notes
from blis_py.models.kv_pages import KVPages
from blis_py.setup import kinds
from blis_py.setup._capacity import layout_of
from blis_py.setup._weights import capacity_of
from blis_py.setup.demand import Demand
from blis_py.setup.deployment import Deployment, deployed
from blis_py.setup.step_times import check_delays, step_times

if TYPE_CHECKING:
    from blis_py.cluster.instances.kinds import KindOfRequests
    from blis_py.cluster.topology import Pool


def _faster_than_hardware(
    served: Deployment, latency: LatencyModel, scheduler: SchedulerConfig, demand: Demand
) -> tuple[str, ...]:
    """Notes on prices below the datasheet's bound, for the longest prompt that is served."""
    if demand.kinds:
        return ()
    prompt_tokens = min(int(demand.table.prompt_tokens.max(initial=0)), scheduler.max_model_len)
    budget_tokens = scheduler.max_num_batched_tokens
    return bound_notes(latency, served.shape, served.gpu, served.config.tp, prompt_tokens, budget_tokens)


def deployed_pool(pool: PoolSection, config: RunConfig, hands_over: bool) -> Deployment:
    """Resolve model, GPU and KV capacity of a pool.

    Args:
        hands_over: as for `deployed`.

    Raises:
        InputError: as `deployed`, by the key of the pool where it overrides the setting.
    """
    try:
        return deployed(config, hands_over)
    except InputError as error:
        name = (error.key or "").removeprefix("--").replace("-", "_")
        if name in pool.overrides():
            raise of_pool(error, f".{pool.name}") from error
        raise


@dataclass(frozen=True, eq=False)
class PoolSetup:
    """A resolved pool."""

    section: PoolSection
    config: RunConfig
    """The configuration of its instances alone."""
    scheduler: SchedulerConfig
    latency: LatencyModel
    capacity: str
    """KV capacity of an instance, in one line."""
    kv_block_bytes: int = 0
    """KV of a block on all GPUs of an instance."""
    kv_layers: int = 1
    hardware_notes: tuple[str, ...] = ()
    host_notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, section: PoolSection, served: Deployment, max_model_len: int, demand: Demand) -> Self:
        """Resolve one pool.

        Args:
            `demand`: the requests of the whole cluster.
        """
        config = served.config
        scheduler = _scheduler(
            config.scheduler,
            served.max_num_seqs,
            served.num_kv_blocks,
            max_model_len,
            config.attention_dp,
            config.attention_dp_timeout_iters,
            served.pages,
        )
        scheduler = kinds.scheduler(demand, config, scheduler)
        latency, host_notes = step_times(served, demand.table, scheduler, not demand.kinds)
        check_delays(latency, demand.table, max_model_len)
        host_notes = (*host_notes, *_of_release(config), *_of_compiling(config, demand))
        by_operators = hasattr(unbounded(latency), "learned_on")
        shape_notes = model_notes(served.shape, served.gpu, by_operators)
        hardware_notes = (
            *served.block_notes(),
            *served.sequence_notes(),
            *shape_notes,
            *link_notes(served.gpu, config.tp),
        )
        hardware_notes += _faster_than_hardware(served, latency, scheduler, demand)
        block_bytes = rank_block_bytes(served.shape, layout_of(config), scheduler.block_size) * config.tp
        kv = block_bytes, served.shape.cached_layers
        return cls(section, config, scheduler, latency, served.capacity, *kv, hardware_notes, host_notes)

    @property
    def name(self) -> str:
        return self.section.name

    def weight(self, modelled: bool) -> float:
        """Capacity of an instance for the router: as given, as its step times have it, or 1."""
        if self.section.weight is not None:
            return self.section.weight
        return capacity_of(self.latency, self.section.role) if modelled else 1.0

    @property
    def _kernel_compile_ns(self) -> int:
        key = "latency.kernel_compile_ms"
        return clock_ns(self.config.latency.kernel_compile_ms, 10**6, key=key)

    def as_data(self, models: frozenset[str] | None = None, capacity_weights: bool = False) -> Pool:
        """The pool as cluster data.

        Args:
            models: names of its model in the requests, if other pools serve other models.
        """
        from blis_py.cluster.topology import InstanceSpec, Pool

        spec = InstanceSpec(
            scheduler=self.scheduler,
            latency=self.latency,
            model=self.config.model or str(self.config.model_config or ""),
            kv_block_bytes=self.kv_block_bytes,
            kv_layers=self.kv_layers,
            kernel_compile_ns=self._kernel_compile_ns,
            gpus=self.config.tp,
            price_per_hour=self.section.price_per_hour,
        )
        section = self.section
        return Pool(
            name=self.name,
            role=section.role,
            count=section.count,
            weight=self.weight(capacity_weights),
            models=models,
            spec=spec,
            routing_policy=section.routing_policy,
            routing_scorers=section.routing_scorers,
        )

    def basis(self, kind: KindOfRequests | None) -> str:
        """Engine, model and latency model in a few words."""
        what = kind.describe() if kind is not None else load_engine(self.config.engine).title
        count = self.section.count
        instances = f"{count} instance{'' if count == 1 else 's'} of {what}"
        served = _SERVED.search(self.latency.provenance)
        if served is None:
            return f"{instances}; step times: {self.latency.provenance}"
        return f"{instances}, {served[1]}; step times: {self.latency.name}"

    def models(self, kind: KindOfRequests | None) -> str:
        """Description of the modelled cluster, and the basis of its step times."""
        scheduler, count = self.scheduler, self.section.count
        batches = f"{scheduler.scheduler} scheduler, {scheduler.batch_former} batches"
        if scheduler.prefix_cache == "radix":
            batches += ", radix prefix cache"
        if scheduler.async_scheduling:
            batches += ", asynchronous scheduling"
        instances = f"{count} instance{'' if count == 1 else 's'}"
        if kind is not None:
            return (
                f"{instances} of {kind.describe()} "
                f"({scheduler.scheduler} scheduler); step times: {self.latency.provenance}"
            )
        engine = load_engine(self.config.engine).title
        return f"{instances} of {engine} ({batches}); step times: {self.latency.provenance}"


_SERVED = re.compile(r", ([^,]+ on [^,]+ TP\d+[^,]*)")
"""Model, GPU and layout in what a latency model says of itself."""


def notes_of(pools: Sequence[PoolSetup], notes: Sequence[Sequence[str]]) -> list[str]:
    """Notes of all pools, prefixed with the pool's name unless common to all."""
    return [
        note if all(note in others for others in notes) else f"{pool.name}: {note}"
        for number, (pool, own) in enumerate(zip(pools, notes, strict=True))
        for note in own
        if not number or not all(note in others for others in notes)
    ]


def weight_notes(pools: Sequence[PoolSetup], modelled: bool) -> list[str]:
    """The capacities by which requests are routed."""
    weights = {pool.name: pool.weight(modelled) for pool in pools}
    largest = max(weights.values())
    if min(weights.values()) == largest:
        return []
    shares = ", ".join(f"{name} {weight / largest:.2g}" for name, weight in weights.items())
    return [f"routed by capacity of an instance: {shares}"]


def _scheduler(
    settings: SchedulerSection,
    max_num_seqs: int,
    num_kv_blocks: int,
    max_model_len: int,
    replicas: int,
    balance_steps: int,
    pages: KVPages | None,
) -> SchedulerConfig:
    """
    Args:
        max_num_seqs: of a replica.
        replicas: of attention, each with the limits of `settings`.
        balance_steps: most steps that prompts wait for one on every replica.
        pages: groups of layers that share the KV blocks, if there are several.
    """
    kind = extended(SchedulerConfig)
    own = {f.name: getattr(settings, f.name) for f in fields(kind) if hasattr(settings, f.name)}
    resolved = {"num_kv_blocks": num_kv_blocks, "max_model_len": max_model_len, "scheduler": settings.policy}
    resolved["max_num_seqs"] = max_num_seqs * replicas
    if pages is not None:
        resolved["kv_groups"] = pages.groups
    if replicas > 1:
        resolved["max_num_batched_tokens"] = settings.max_num_batched_tokens * replicas
        resolved |= {"ranks": replicas, "rank_balance_steps": balance_steps}
    return kind(**own | resolved)


def _of_release(config: RunConfig) -> tuple[str, ...]:
    """Notes on what of its release is not simulated, or not known to be right, and on settings without effect
    there."""
    preset, settings = load_engine(config.engine), config.scheduler
    notes = [note for note in (preset.not_priced, preset.not_compared) if note]
    if (
        settings.prefill_schedule_interval > 1
        and settings.prefill_interval_needs_ranks
        and config.attention_dp == 1
    ):
        notes.append(f"prefill_schedule_interval has no effect in {preset.title} without attention DP")
    return tuple(notes)


def _of_compiling(config: RunConfig, demand: Demand) -> tuple[str, ...]:
    """A note on kernels compiled at their first use where prompts do not go on, or none are known."""
    wait_ms = config.latency.kernel_compile_ms
    if demand.kinds and wait_ms:
        return (f"latency.kernel_compile_ms has no effect on {kinds.title(demand)}",)
    if config.latency.cold_kernels and not wait_ms:
        return ("latency.cold_kernels has no effect: no kernels are known to be compiled late here",)
    return ()
