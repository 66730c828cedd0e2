"""From a configuration to the requests it speaks of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_py.config_check import duration_ns
from blis_py.config_models import RunConfig, WorkloadSection
from blis_py.config_paths import spec_path
from blis_py.errors import InputError
from blis_py.workload.table import RequestTable

if TYPE_CHECKING:
    from blis_py.workload.diffusion import DiffusionClient

DEFAULT_SEED = 42


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of a cluster."""

    table: RequestTable
    """The requests, in order of arrival."""
    seed: int
    """What their random numbers start from."""
    diffusion: Mapping[str, DiffusionClient] = field(default_factory=dict)
    """By client, of those whose model fills blocks by denoising."""
    diffusion_trace: str | None = None
    """The trace they come from, where it says that its answers came in diffusion blocks."""


def requests(config: RunConfig) -> RequestTable:
    """The requests of a configuration, in order of arrival."""
    return demand(config).table


def demand(config: RunConfig) -> Demand:
    """The requests of a configuration, and what their kind is."""
    load = config.workload
    seed = DEFAULT_SEED if config.seed is None else config.seed
    horizon_ns = horizon_ns_of(config)
    if load.trace is not None:
        return _described(_from_trace(load, seed), seed, config)
    if load.spec is not None:
        from blis_py.workload import generate
        from blis_py.workload.spec import load_spec

        spec = load_spec(spec_path(load.spec))
        seed = spec.seed if config.seed is None and spec.seed is not None else seed
        clients = {client.name: client.diffusion for client in spec.resolved()}
        diffusion = {name: client for name, client in clients.items() if client is not None}
        if diffusion and config.dllm.workload is not None:
            fix = "drop one of the two"
            raise InputError("the workload spec says it already", key="--dllm-workload", fix=fix)
        table = generate(
            spec, seed=seed, rate=load.rate, num_requests=load.num_requests, horizon_ns=horizon_ns
        )
        return _described(table, seed, config, diffusion)
    return _described(_synthesised(load, seed, horizon_ns), seed, config)


def _described(
    table: RequestTable,
    seed: int,
    config: RunConfig,
    diffusion: Mapping[str, DiffusionClient] | None = None,
) -> Demand:
    """With `dllm.workload`, every request is one of block diffusion, as described there."""
    if config.dllm.workload is not None:
        from blis_py.files.yaml_files import load_mapping
        from blis_py.workload.diffusion import diffusion_client

        file = Path(config.dllm.workload)
        client = diffusion_client(load_mapping(file), file=file)
        diffusion = dict.fromkeys(table.client.names, client)
    return Demand(table, seed, diffusion or {}, _trace_of_diffusion(config.workload))


def _trace_of_diffusion(load: WorkloadSection) -> str | None:
    if load.trace is None:
        return None
    from blis_py.traces import of_diffusion

    return load.trace if of_diffusion(load.trace, load.trace_header) else None


def _from_trace(load: WorkloadSection, seed: int) -> RequestTable:
    from blis_py.traces import read_trace

    assert load.trace is not None
    table = read_trace(
        load.trace,
        header=load.trace_header,
        time_scale=load.time_scale,
        limit=load.limit if load.num_requests is None else load.num_requests,
        slo_shares=load.slo_shares or None,
        seed=seed,
    )
    if load.rate is None:
        return table
    span_s = float(table.arrival_ns[-1] - table.arrival_ns[0]) / 1e9 if len(table) else 0.0
    if span_s == 0:
        raise InputError(
            "its requests all arrive at once, so it has no rate",
            file=load.trace,
            key="workload.rate",
            value=load.rate,
            fix="drop the rate",
        )
    return table.scaled((len(table) - 1) / span_s / load.rate)


def _synthesised(load: WorkloadSection, seed: int, horizon_ns: int | None) -> RequestTable:
    from blis_py.workload.presets import preset, synthesise

    num_requests = 100 if load.num_requests is None and horizon_ns is None else load.num_requests
    common: dict[str, Any] = {
        "rate": 1.0 if load.rate is None else load.rate,
        "num_requests": num_requests,
        "horizon_ns": horizon_ns,
        "arrival": load.arrival,
        "cv": load.cv,
        "seed": seed,
        "timeout_s": load.timeout_s,
    }
    if load.preset is not None:
        return preset(load.preset, **common)
    lengths = {
        f"{side}_tokens{part}": getattr(load, f"{side}_tokens{part}")
        for side in ("prompt", "output")
        for part in ("", "_stdev", "_min", "_max")
    }
    return synthesise(**common, **lengths, prefix_tokens=load.prefix_tokens)


def horizon_ns_of(config: RunConfig) -> int | None:
    """When the run stops; None = when all is done."""
    return None if config.horizon is None else duration_ns(config.horizon)
