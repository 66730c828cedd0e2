"""From a configuration to the requests it speaks of."""

from __future__ import annotations

from typing import Any

from blis_py.config_check import duration_ns
from blis_py.config_models import RunConfig, WorkloadSection
from blis_py.config_paths import spec_path
from blis_py.errors import InputError
from blis_py.workload.table import RequestTable

DEFAULT_SEED = 42


def requests(config: RunConfig) -> RequestTable:
    """The requests of a configuration, in order of arrival."""
    load = config.workload
    seed = DEFAULT_SEED if config.seed is None else config.seed
    horizon_ns = horizon_ns_of(config)
    if load.trace is not None:
        return _from_trace(load, seed)
    if load.spec is not None:
        from blis_py.workload import generate
        from blis_py.workload.spec import load_spec

        spec = load_spec(spec_path(load.spec))
        return generate(
            spec, seed=config.seed, rate=load.rate, num_requests=load.num_requests, horizon_ns=horizon_ns
        )
    return _synthesised(load, seed, horizon_ns)


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
