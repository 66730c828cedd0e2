"""Requests from a recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blis_py.config.workload import WorkloadSection
from blis_py.core.bounds import SECOND_NS
from blis_py.errors import InputError
from blis_py.metrics.slo import targets_in_ms
from blis_py.requests.sessions import as_early_as_can_be, later_turns_last, waits
from blis_py.requests.streams import stream
from blis_py.requests.table import RequestTable, deadlines_ns
from blis_py.setup.demand import TARGETS, Demand

if TYPE_CHECKING:
    from blis_py.requests.loops import Loops
    from blis_py.requests.think_time import ThinkTime
    from blis_py.traces.reading import Reading

Read = Callable[[WorkloadSection, int], "tuple[RequestTable, Reading]"]
"""Reader of a configuration's trace, given the random seed."""


def as_recorded(load: WorkloadSection, seed: int) -> tuple[RequestTable, Reading]:
    """The requests of a trace at the recorded times, and the reading's notes."""
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


def from_trace(load: WorkloadSection, trace: str, seed: int, read: Read) -> Demand:
    """The requests of a trace, with the properties in its header.

    Args:
        read: the trace reader.
    """
    from blis_py.traces import header_of
    from blis_py.traces.tracev2_header import kind_of

    table, reading = read(load, seed)
    if not reading.has_times:
        table = _without_times(table, load, seed, reading)
    elif load.rate is not None:
        table = _at_rate(table, load.rate, trace)
    if load.client_timeout_s is not None:
        patience_ns = np.full(len(table), round(load.client_timeout_s * SECOND_NS), dtype=np.int64)
        table = replace(table, deadline_ns=deadlines_ns(table.arrival_ns, patience_ns))
    table, loops = _turns_apart(table, load)
    if loops is None:
        table, loops = _in_flight(table, load, reading)
    demand = Demand(
        table,
        seed,
        notes=reading.stated(),
        requests_models=reading.requests_models,
        loops=loops,
        source=reading.chosen_as,
    )
    trace_header = header_of(trace, load.trace_header)
    if trace_header is None:
        return demand
    file, header = trace_header
    kind = kind_of(header)
    return replace(
        demand,
        recorded_kind=None if kind is None else (kind, trace),
        targets=targets_in_ms(header.get(TARGETS) or {}, key=TARGETS, file=file),
    )


def _turns_apart(table: RequestTable, load: WorkloadSection) -> tuple[RequestTable, Loops | None]:
    """Requests with dependent turns split off as closed loops, if there are any."""
    later = int(waits(table).sum())
    if not later:
        return table, None
    if load.concurrency is not None:
        problem, fix = "the turns of the trace wait for answers already", "drop one of the two"
        raise InputError(problem, key="workload.concurrency", value=load.concurrency, fix=fix)
    from blis_py.requests.loops import Loop, Loops

    begun = Loop(slice(0, len(table) - later))
    return later_turns_last(table), Loops([begun], later_turns=True, as_blis=load.closed_loops == "blis")


def _in_flight(
    table: RequestTable, load: WorkloadSection, reading: Reading
) -> tuple[RequestTable, Loops | None]:
    """Requests of a closed-loop benchmark as that closed loop, unless another load is given."""
    limit = reading.concurrency
    if limit is None or load.as_recorded or load.concurrency is not None or load.rate is not None:
        return table, None
    if table.round_index is not None and table.round_index.any():
        reading.note(
            f"recorded with {limit:,} in flight: its conversations are played at the recorded times; "
            "--session-mode closed-loop: each turn after the answer before it"
        )
        return table, None
    from blis_py.requests.loops import Loop, Loops

    reading.note(
        f"recorded with {limit:,} request{'s' if limit > 1 else ''} in flight: repeated as that closed loop "
        "(--as-recorded: at the recorded times)"
    )
    paced = reading.paced and reading.has_times
    table = table if paced else table.at_once()
    return table, Loops([Loop(slice(0, len(table)), limit, 0, paced)], as_blis=load.closed_loops == "blis")


def reading_of(load: WorkloadSection) -> Reading:
    """Trace-reading options of a configuration."""
    from blis_py.traces.bad_rows import BadRows
    from blis_py.traces.reading import Reading

    return Reading(
        header=None if load.trace_header is None else Path(load.trace_header),
        columns=load.columns,
        time_unit=load.time_unit,
        hash_block_size=load.hash_block_size,
        tokenizer=None if load.tokenizer is None else Path(load.tokenizer),
        bad=BadRows(skip=load.skip_bad_rows, fix="leave such rows out with --skip-bad-rows"),
        session_mode=load.session_mode,
        think=_think_time(load),
        as_blis=load.closed_loops == "blis",
    )


def _think_time(load: WorkloadSection) -> ThinkTime | None:
    """Think time of clients; `None` = as recorded."""
    from blis_py.requests.think_time import ThinkTime, think_time

    if load.think_time_dist is not None:
        return think_time(load.think_time_dist)
    if load.think_time_ms is None or load.session_mode != "closed-loop":
        return None
    return ThinkTime("constant", {"value": round(load.think_time_ms * 1e6)})


def _without_times(table: RequestTable, load: WorkloadSection, seed: int, reading: Reading) -> RequestTable:
    """Requests of a recording without arrival times: a Poisson process, or all at once."""
    limited = load.concurrency is not None or reading.concurrency is not None
    rate = load.rate if load.rate is not None or limited else reading.rate
    if rate is not None:
        whose = "" if rate == load.rate else ", the rate of that benchmark"
        reading.note(f"it says nothing of times: requests come as a Poisson process at {rate:g}/s{whose}")
        begins, arrival_ns = ~waits(table), table.arrival_ns.copy()
        gaps_s = stream(seed, "trace", "arrivals").exponential(1 / rate, int(begins.sum()))
        arrival_ns[begins] = np.rint(np.cumsum(gaps_s) * SECOND_NS).astype(np.int64)
        return as_early_as_can_be(replace(table, arrival_ns=arrival_ns))
    if load.concurrency is None and (reading.concurrency is None or load.as_recorded):
        reading.note("it says nothing of times: all requests come at once; give --rate or --concurrency")
    return table


def _at_rate(table: RequestTable, rate: float, trace: str) -> RequestTable:
    """Arrivals rescaled to a rate in requests per second."""
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
