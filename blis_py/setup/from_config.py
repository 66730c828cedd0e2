"""Requests of a configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from blis_py.config.implied import SIDES
from blis_py.config.models import PLAIN_ENGINE, RunConfig
from blis_py.config.workload import WorkloadSection
from blis_py.core.bounds import LAST_NS, in_seconds
from blis_py.errors import InputError
from blis_py.requests.streams import stream
from blis_py.requests.table import RequestTable
from blis_py.setup import kinds
from blis_py.setup.demand import STRUCTURED_OUTPUTS, Demand, horizon_ns_of

if TYPE_CHECKING:
    from blis_py.setup.from_trace import Read

DEFAULT_SEED = 42


def requests(config: RunConfig) -> RequestTable:
    """The requests of a configuration, in order of arrival.

    Raises:
        InputError: the requests depend on the run (closed loops).
    """
    requested = demand(config)
    require_open_loops(requested, config)
    return requested.table


def require_open_loops(requested: Demand, config: RunConfig) -> None:
    """
    Raises:
        InputError: the requests depend on the run (closed loops).
    """
    if requested.loops is not None:
        load = config.workload
        key, value = ("trace", load.trace) if load.spec is None else ("spec", load.spec)
        problem = "has clients that wait for answers before they send more, which only a simulation serves"
        fix = "play it at fixed times: closed_loop: false, --session-mode fixed, no concurrency of clients"
        if requested.loops.only_turns:
            fix = f"{fix.partition(', no')[0]}; or convert it to TraceV2, which holds pauses"
        raise InputError(problem, key=f"workload.{key}", value=value, fix=fix)


def demand(config: RunConfig, read: Read | None = None) -> Demand:
    """The demand of a configuration: its requests, and their properties.

    Args:
        read: a trace reader, for instance one with a cache.
    """
    load = config.workload
    seed = DEFAULT_SEED if config.seed is None else config.seed
    if load.trace is not None:
        requested = _of_file(config, load.trace, seed, read)
    elif load.spec is not None:
        from blis_py.setup.from_spec import from_spec

        requested = from_spec(config, load.spec, seed)
    else:
        requested = _synthesised(load, seed, horizon_ns_of(config))
        requested = replace(requested, notes=(*_spread_notes(config), *requested.notes))
        if load.concurrency is not None and load.rate is None:
            requested = _as_permits_allow(requested, config)
    requested = _with_unforeseen_ends(kinds.described(requested, config), load.eos_share)
    requested = _with_structured_outputs(requested, load.structured_output_ratio)
    if config.horizon is not None:
        requested = replace(requested, horizon_ns=horizon_ns_of(config))
    return replace(requested, notes=(*requested.notes, *_horizon_notes(config, requested.table)))


def _of_file(config: RunConfig, trace: str, seed: int, read: Read | None) -> Demand:
    """The requests of a trace, or of a workload description given in its place."""
    from blis_py.setup.from_spec import describes, from_spec, require_no_recording
    from blis_py.setup.from_trace import as_recorded, from_trace

    if describes(trace):
        require_no_recording(config)
        return from_spec(config, trace, seed)
    return from_trace(config.workload, trace, seed, read or as_recorded)


def _with_unforeseen_ends(requested: Demand, share: float) -> Demand:
    """The demand with this share of answers ending in an EOS token; other ends in a trace are kept."""
    if not share:
        return requested
    draws = stream(requested.seed, "end of sequence")
    return replace(requested, table=requested.table.with_unforeseen_ends(share, draws))


def _with_structured_outputs(requested: Demand, ratio: float | None) -> Demand:
    """The demand with this share of answers constrained by a grammar, overriding trace and spec."""
    if ratio is None:
        return requested
    if requested.kinds and ratio:
        problem, fix = f"{kinds.title(requested)} does not support structured outputs", "drop it"
        raise InputError(problem, key="workload.structured_output_ratio", value=ratio, fix=fix)
    draws = stream(requested.seed, STRUCTURED_OUTPUTS)
    return replace(requested, table=requested.table.with_structured_outputs(ratio, draws))


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
        uniform = load.length_law == "uniform"
        table = synthesise(
            **common, **lengths, prefix_tokens=load.prefix_tokens, keep_mean=keep, uniform=uniform
        )
        if uniform:
            return Demand(table, seed)
        values = list(lengths.values())
        sizes = Sizes(*values[:4]), Sizes(*values[4:])
    notes = (
        note_of(own, what, load.preset is None) for own, what in zip(sizes, ("prompt", "output"), strict=True)
    )
    return Demand(table, seed, notes=tuple(note for note in notes if note is not None))


def _spread_notes(config: RunConfig) -> list[str]:
    """A note on lengths that are given and vary all the same, by BLIS's default."""
    load, given = config.workload, config.given or ()
    if config.engine != PLAIN_ENGINE or load.length_law == "uniform":
        return []
    if not {f"workload.{side}_tokens" for side in SIDES}.intersection(given):
        return []
    open_ = [side for side in SIDES if f"workload.{side}_tokens_stdev" not in given]
    found = {side: stdev for side in open_ if (stdev := getattr(load, f"{side}_tokens_stdev"))}
    if not found:
        return []
    spread = " and ".join(f"{side} {stdev:,}" for side, stdev in found.items())
    fix = " ".join(f"--{side}-tokens-stdev 0" for side in found)
    return [f"lengths vary, as by default in BLIS (standard deviation: {spread}); all alike with {fix}"]


def _as_permits_allow(requested: Demand, config: RunConfig) -> Demand:
    if config.workload.num_requests is None and config.horizon is not None:
        fix = "give --num-requests, or a --rate"
        raise InputError("nothing says how many requests there are", key="workload.concurrency", fix=fix)
    return replace(requested, table=requested.table.at_once())


def _horizon_notes(config: RunConfig, table: RequestTable) -> list[str]:
    """A note on the horizon in seconds: a plain number is in µs, which is easily overlooked."""
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
