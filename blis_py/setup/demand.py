"""From a configuration to the requests it speaks of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.config.check import TRACE_ONLY, duration_ns
from blis_py.config.models import RunConfig, WorkloadSection
from blis_py.config.paths import spec_path
from blis_py.core.bounds import LAST_NS, SECOND_NS, in_seconds
from blis_py.errors import InputError
from blis_py.files.paths import is_file, is_folder
from blis_py.metrics.slo import GoodputTargets, targets_in_ms
from blis_py.requests.sessions import later_turns_last, waits
from blis_py.requests.streams import stream
from blis_py.requests.table import RequestTable, deadlines_ns

if TYPE_CHECKING:
    from blis_py.requests.loops import Loops
    from blis_py.requests.think_time import ThinkTime
    from blis_py.traces.reading import Reading
    from blis_py.workload.diffusion import DiffusionClient
    from blis_py.workload.spec import WorkloadSpec

DEFAULT_SEED = 42
STRUCTURED_OUTPUTS = "structured outputs"
"""Names the random numbers that say whose answer a grammar constrains."""
Read = Callable[[WorkloadSection, int], "tuple[RequestTable, Reading]"]
_DESCRIPTION = {"clients", "cohorts", "servegen_data", "inference_perf"}
"""What a workload spec has, and the header of a trace has not."""
TARGETS = "goodput_slo_targets"
"""Of a workload spec or of the header of a trace."""


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """What is asked of a cluster."""

    table: RequestTable
    """The requests, in order of arrival; with `loops`, all that may be sent, loop by loop."""
    seed: int
    """What their random numbers start from."""
    diffusion: Mapping[str, DiffusionClient] = field(default_factory=dict)
    """By client, of those whose model fills blocks by denoising."""
    diffusion_trace: str | None = None
    """The trace they come from, where it says that its answers came in diffusion blocks."""
    targets: GoodputTargets = field(default_factory=GoodputTargets)
    """What a good request meets, by the workload or trace itself."""
    notes: tuple[str, ...] = ()
    """What became of what was asked for."""
    asks_for_models: bool = False
    """Whether requests for another model than the one that is served are nobody's."""
    loops: Loops | None = None
    """Clients that wait for answers before they send more; None = nobody does."""
    horizon_ns: int | None = None
    """When the run stops; None = when all is done."""
    source: str = ""
    """Which format a recording was taken for, and why; empty where somebody said which, or there is none."""


def requests(config: RunConfig) -> RequestTable:
    """The requests of a configuration, in order of arrival.

    Raises:
        InputError: they depend on what becomes of them.
    """
    asked = demand(config)
    require_open_loops(asked, config)
    return asked.table


def require_open_loops(asked: Demand, config: RunConfig) -> None:
    """
    Raises:
        InputError: what is sent depends on what becomes of it.
    """
    if asked.loops is not None:
        load = config.workload
        key, value = ("trace", load.trace) if load.spec is None else ("spec", load.spec)
        problem = "has clients who wait for answers before they send more, which only a simulation serves"
        fix = "play it at fixed times: closed_loop: false, --session-mode fixed, no concurrency of clients"
        if asked.loops.only_turns:
            fix = f"{fix.partition(', no')[0]}; or convert it to TraceV2, which holds pauses"
        raise InputError(problem, key=f"workload.{key}", value=value, fix=fix)


def demand(config: RunConfig, read: Read | None = None) -> Demand:
    """The requests of a configuration, and what their kind is.

    Args:
        read: what reads a trace, where somebody has read it already.
    """
    load = config.workload
    seed = DEFAULT_SEED if config.seed is None else config.seed
    if load.trace is not None and _describes(load.trace):
        asked = _from_spec(_as_spec(config), load.trace)
    elif load.trace is not None:
        asked = _from_trace(load, load.trace, seed, read or as_recorded)
    elif load.spec is not None:
        asked = _from_spec(config, load.spec)
    else:
        asked = _synthesised(load, seed, horizon_ns_of(config))
        if load.concurrency is not None and load.rate is None:
            asked = _as_permits_allow(asked, config)
    asked = _with_unforeseen_ends(_with_diffusion(asked, config), load.eos_share)
    asked = _with_structured_outputs(asked, load.structured_output_ratio)
    if config.horizon is not None:
        asked = replace(asked, horizon_ns=horizon_ns_of(config))
    return replace(asked, notes=(*asked.notes, *_horizon_notes(config, asked.table)))


def _describes(trace: str) -> bool:
    """Whether what was given as a recording describes a workload: a folder of ServeGen, a configuration of
    inference-perf, a workload spec."""
    path = Path(trace)
    if path.suffix not in (".yaml", ".yml") and not is_folder(path):
        return False
    from blis_py.files.yaml_files import load_mapping
    from blis_py.workload.servegen import is_servegen
    from blis_py.workload.spec_inference_perf import is_config

    if not is_file(path):
        return is_servegen(path)
    values = load_mapping(path)
    return is_config(values) or not _DESCRIPTION.isdisjoint(values)


def _as_spec(config: RunConfig) -> RunConfig:
    """
    Raises:
        InputError: a setting that only a recording heeds.
    """
    given = WorkloadSection()
    for name in (*TRACE_ONLY, "session_mode", "think_time_dist"):
        value = getattr(config.workload, name)
        if value != getattr(given, name):
            fix = "drop it, or make a recording of it with `blis convert`"
            problem = f"has no effect on {config.workload.trace}, which describes a workload"
            raise InputError(problem, key=f"workload.{name}", value=value, fix=fix)
    return config


def _from_spec(config: RunConfig, name: str) -> Demand:
    from blis_py.workload.generate import generate_loops
    from blis_py.workload.spec import load_spec

    load = config.workload
    spec = load_spec(spec_path(name), classes=config.admission.slo_priorities)
    seed = spec.seed if config.seed is None and spec.seed is not None else config.seed
    seed = DEFAULT_SEED if seed is None else seed
    resolved = spec.resolved()
    clients = {client.name: client.diffusion for client in resolved}
    table, loops = generate_loops(
        spec,
        seed=seed,
        rate=load.rate,
        num_requests=load.num_requests,
        horizon_ns=horizon_ns_of(config),
        as_blis=load.closed_loops == "blis",
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
        notes=(*spec.notes, *_end_notes(end_ns)),
        asks_for_models=True,
        loops=loops,
        horizon_ns=end_ns,
    )


def _end_of(config: RunConfig, spec: WorkloadSpec, table: RequestTable) -> int | None:
    """When the spec's horizon ends the run: where it is what ends the load, and not a number of requests."""
    if config.drain:
        return None
    count = config.workload.num_requests or spec.num_requests
    by_number = len(table) == count
    return None if config.horizon is not None or by_number else spec.horizon * 1000 or None


def _end_notes(end_ns: int | None) -> list[str]:
    """Requests under way at the end are cut off."""
    if end_ns is None:
        return []
    ends = f"the run ends at {in_seconds(end_ns)}, the horizon of the workload spec"
    return [f"{ends}; --drain goes on until all is done"]


def _with_diffusion(asked: Demand, config: RunConfig) -> Demand:
    """With `dllm.workload`, every request is one of block diffusion, as described there."""
    if config.dllm.workload is None:
        return asked
    if asked.diffusion:
        fix = "drop one of the two"
        raise InputError("the workload spec says it already", key="--dllm-workload", fix=fix)
    from blis_py.files.yaml_files import load_mapping
    from blis_py.workload.diffusion import diffusion_client

    file = Path(config.dllm.workload)
    client = diffusion_client(load_mapping(file), file=file)
    return replace(asked, diffusion=dict.fromkeys(asked.table.client.names, client))


def _with_unforeseen_ends(asked: Demand, share: float) -> Demand:
    """That share of the answers ends with an end of sequence; what a trace says of others stays."""
    if not share:
        return asked
    draws = stream(asked.seed, "end of sequence")
    return replace(asked, table=asked.table.with_unforeseen_ends(share, draws))


def _with_structured_outputs(asked: Demand, ratio: float | None) -> Demand:
    """A grammar constrains that share of the answers, whatever a trace or spec says."""
    if ratio is None:
        return asked
    if asked.diffusion and ratio:
        problem, fix = "block diffusion knows no structured outputs", "drop it"
        raise InputError(problem, key="workload.structured_output_ratio", value=ratio, fix=fix)
    draws = stream(asked.seed, STRUCTURED_OUTPUTS)
    return replace(asked, table=asked.table.with_structured_outputs(ratio, draws))


def as_recorded(load: WorkloadSection, seed: int) -> tuple[RequestTable, Reading]:
    """The requests of a trace at the times that it tells, and what there is to say about it."""
    from blis_py.traces import read_trace

    assert load.trace is not None
    reading = reading_of(load)
    table = read_trace(
        load.trace,
        time_scale=load.time_scale,
        limit=load.limit if load.num_requests is None else load.num_requests,
        slo_shares=load.slo_shares or None,
        seed=seed,
        format=load.trace_format,
        reading=reading,
    )
    return table, reading


def _from_trace(load: WorkloadSection, trace: str, seed: int, read: Read) -> Demand:
    from blis_py.traces import header_of, of_diffusion

    table, reading = read(load, seed)
    if not reading.has_times:
        table = _without_times(table, load, seed, reading)
    elif load.rate is not None:
        table = _at_rate(table, load.rate, trace)
    if load.client_timeout_s is not None:
        patience_ns = np.full(len(table), round(load.client_timeout_s * SECOND_NS), dtype=np.int64)
        table = replace(table, deadline_ns=deadlines_ns(table.arrival_ns, patience_ns))
    table, loops = _turns_apart(table, load)
    asked = Demand(
        table,
        seed,
        notes=reading.told(),
        asks_for_models=reading.asks_for_models,
        loops=loops,
        source=reading.chosen_as,
    )
    found = header_of(trace, load.trace_header)
    if found is None:
        return asked
    file, header = found
    return replace(
        asked,
        diffusion_trace=trace if of_diffusion(header) else None,
        targets=targets_in_ms(header.get(TARGETS) or {}, key=TARGETS, file=file),
    )


def _turns_apart(table: RequestTable, load: WorkloadSection) -> tuple[RequestTable, Loops | None]:
    """Turns that wait behind all the others, if there are any."""
    later = int(waits(table).sum())
    if not later:
        return table, None
    if load.concurrency is not None:
        problem, fix = "the turns of the trace wait for answers already", "drop one of the two"
        raise InputError(problem, key="workload.concurrency", value=load.concurrency, fix=fix)
    from blis_py.requests.loops import Loop, Loops

    begun = Loop(slice(0, len(table) - later))
    return later_turns_last(table), Loops([begun], later_turns=True, as_blis=load.closed_loops == "blis")


def reading_of(load: WorkloadSection) -> Reading:
    """How the trace of a configuration is to be read."""
    from blis_py.traces.bad_rows import BadRows
    from blis_py.traces.reading import Reading

    return Reading(
        header=None if load.trace_header is None else Path(load.trace_header),
        columns=load.columns,
        time_unit=load.time_unit,
        tokenizer=None if load.tokenizer is None else Path(load.tokenizer),
        bad=BadRows(skip=load.skip_bad_rows, fix="leave such rows out with --skip-bad-rows"),
        session_mode=load.session_mode,
        think=_think_time(load),
        as_blis=load.closed_loops == "blis",
    )


def _think_time(load: WorkloadSection) -> ThinkTime | None:
    """How long clients think before they go on; `None` = as recorded."""
    from blis_py.requests.think_time import ThinkTime, think_time

    if load.think_time_dist is not None:
        return think_time(load.think_time_dist)
    if load.think_time_ms is None or load.session_mode != "closed-loop":
        return None
    return ThinkTime("constant", {"value": round(load.think_time_ms * 1e6)})


def _without_times(table: RequestTable, load: WorkloadSection, seed: int, reading: Reading) -> RequestTable:
    """A recording that does not say when requests came: as a Poisson process, or all at once."""
    if load.rate is not None:
        reading.tell(f"it says nothing of times: requests come as a Poisson process at {load.rate:g}/s")
        gaps_s = stream(seed, "trace", "arrivals").exponential(1 / load.rate, len(table))
        return replace(table, arrival_ns=np.rint(np.cumsum(gaps_s) * SECOND_NS).astype(np.int64))
    if load.concurrency is None:
        reading.tell("it says nothing of times: all requests come at once; give --rate or --concurrency")
    return table


def _at_rate(table: RequestTable, rate: float, trace: str) -> RequestTable:
    """Stretched, or pressed together, to so many requests per second."""
    span_s = float(table.arrival_ns[-1] - table.arrival_ns[0]) / 1e9 if len(table) else 0.0
    if span_s == 0:
        raise InputError(
            "its requests all arrive at once, so it has no rate",
            file=trace,
            key="workload.rate",
            value=rate,
            fix="drop the rate",
        )
    return table.scaled((len(table) - 1) / span_s / rate, key="workload.rate", value=rate, file=trace)


def _synthesised(load: WorkloadSection, seed: int, horizon_ns: int | None) -> Demand:
    from blis_py.workload.presets import AS_BLIS, PRESETS, Sizes, note_of, preset, synthesise

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
    if load.preset not in (None, AS_BLIS):
        assert load.preset is not None
        table, sizes = preset(load.preset, **common), PRESETS[load.preset]
    else:
        lengths = {
            f"{side}_tokens{part}": getattr(load, f"{side}_tokens{part}")
            for side in ("prompt", "output")
            for part in ("", "_stdev", "_min", "_max")
        }
        keep = load.preset is None
        table = synthesise(**common, **lengths, prefix_tokens=load.prefix_tokens, keep_mean=keep)
        values = list(lengths.values())
        sizes = Sizes(*values[:4]), Sizes(*values[4:])
    notes = (
        note_of(own, what, load.preset is None) for own, what in zip(sizes, ("prompt", "output"), strict=True)
    )
    return Demand(table, seed, notes=tuple(note for note in notes if note is not None))


def _as_permits_allow(asked: Demand, config: RunConfig) -> Demand:
    if config.workload.num_requests is None and config.horizon is not None:
        fix = "give --num-requests, or a --rate"
        raise InputError("nothing says how many requests there are", key="workload.concurrency", fix=fix)
    return replace(asked, table=asked.table.at_once())


def _horizon_notes(config: RunConfig, table: RequestTable) -> list[str]:
    """What a horizon comes to: a plain number of µs is easily taken for seconds."""
    horizon_ns = horizon_ns_of(config)
    if horizon_ns is None:
        return []
    notes = []
    if str(config.horizon).strip().isdecimal():
        notes.append(
            f"horizon {config.horizon} is in µs, as in BLIS: the run ends at {in_seconds(horizon_ns)}"
        )
    first_ns = int(table.arrival_ns.min(initial=LAST_NS)) if len(table) else 0
    if first_ns > horizon_ns:
        problem = "before the first request comes"
        notes.append(f"the run ends at {in_seconds(horizon_ns)}, {problem} at {in_seconds(first_ns)}")
    return notes


def horizon_ns_of(config: RunConfig) -> int | None:
    """When the run stops, as asked for; None = nothing is said."""
    return None if config.horizon is None else duration_ns(config.horizon)
