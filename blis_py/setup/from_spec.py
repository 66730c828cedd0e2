"""Requests from a workload description."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blis_py.config.check import TRACE_ONLY
from blis_py.config.models import RunConfig
from blis_py.config.paths import spec_path
from blis_py.config.workload import WorkloadSection
from blis_py.core.bounds import in_seconds
from blis_py.errors import InputError
from blis_py.files.paths import is_file, is_folder
from blis_py.files.yaml_files import load_mapping
from blis_py.metrics.slo import targets_in_ms
from blis_py.requests.streams import stream
from blis_py.requests.table import RequestTable
from blis_py.setup.demand import STRUCTURED_OUTPUTS, TARGETS, Demand, horizon_ns_of

if TYPE_CHECKING:
    from blis_py.workload.client import Client
    from blis_py.workload.spec import WorkloadSpec

_DESCRIPTION = {"clients", "cohorts", "servegen_data", "inference_perf"}
"""Keys that a workload spec has and a trace header does not."""


def describes(trace: str) -> bool:
    """Whether a file given as a trace describes a workload: a ServeGen folder, an inference-perf
    configuration, or a workload spec."""
    path = Path(trace)
    if path.suffix not in (".yaml", ".yml") and not is_folder(path):
        return False
    from blis_py.workload.servegen import is_servegen
    from blis_py.workload.spec_inference_perf import is_config

    if not is_file(path):
        return is_servegen(path)
    values = load_mapping(path)
    return is_config(values) or not _DESCRIPTION.isdisjoint(values)


def require_no_recording(config: RunConfig) -> None:
    """
    Raises:
        InputError: a setting that only applies to recordings.
    """
    given = WorkloadSection()
    for name in (*TRACE_ONLY, "session_mode", "think_time_dist"):
        value = getattr(config.workload, name)
        if value != getattr(given, name):
            fix = "drop it, or make a recording of it with `blis convert`"
            problem = f"has no effect on {config.workload.trace}, which describes a workload"
            raise InputError(problem, key=f"workload.{name}", value=value, fix=fix)


def from_spec(config: RunConfig, name: str, seed: int) -> Demand:
    """The requests of a workload spec, a folder of ServeGen, or a configuration of inference-perf.

    Args:
        seed: used if neither the configuration nor the spec has one.

    Raises:
        InputError: the closed loop of the configuration contradicts the spec.
    """
    from blis_py.workload.generate import generate_loops
    from blis_py.workload.spec import load_spec

    load, as_blis = config.workload, config.workload.closed_loops == "blis"
    spec = load_spec(spec_path(name), classes=config.admission.slo_priorities)
    if config.seed is None and spec.seed is not None:
        seed = spec.seed
    resolved = spec.resolved()
    clients = {client.name: client.kind for client in resolved}
    table, loops = generate_loops(
        spec,
        seed=seed,
        rate=load.rate,
        num_requests=load.num_requests,
        horizon_ns=horizon_ns_of(config),
        as_blis=as_blis,
    )
    if loops is not None and load.concurrency is not None:
        problem, fix = "clients of the workload spec wait for answers already", "drop one of the two"
        raise InputError(problem, key="workload.concurrency", value=load.concurrency, fix=fix)
    ratios = {client.name: client.structured_output_ratio for client in resolved}
    if any(ratios.values()):
        own = np.array([ratios[name] for name in table.client.names])[table.client.codes]
        table = table.with_structured_outputs(own, stream(seed, STRUCTURED_OUTPUTS))
    end_ns = _end_of(config, spec, table)
    return Demand(
        table,
        seed,
        {name: client for name, client in clients.items() if client is not None},
        targets=targets_in_ms(spec.goodput_slo_targets, key=TARGETS, file=spec.file),
        notes=(*spec.notes, *_session_notes(resolved, as_blis), *_end_notes(end_ns)),
        requests_models=True,
        loops=loops,
        horizon_ns=end_ns,
    )


def _end_of(config: RunConfig, spec: WorkloadSpec, table: RequestTable) -> int | None:
    """End of the run by the spec's horizon, in ns, where the horizon rather than a number of requests ends
    the load."""
    if config.drain:
        return None
    count = config.workload.num_requests or spec.num_requests
    by_number = len(table) == count
    return None if config.horizon is not None or by_number else spec.horizon * 1000 or None


def _session_notes(clients: Sequence[Client], as_blis: bool) -> list[str]:
    """A note that BLIS has no sessions of clients with a concurrency."""
    if not as_blis or not any(client.permits and client.sessions for client in clients):
        return []
    return ["multi_turn of clients with a concurrency is ignored, as in BLIS; closed_loops=client uses it"]


def _end_notes(end_ns: int | None) -> list[str]:
    """A note that requests in progress at the end are cut off."""
    if end_ns is None:
        return []
    ends = f"the run ends at {in_seconds(end_ns)}, the horizon of the workload spec"
    return [f"{ends}; --drain goes on until all is done"]
