"""Execution of one job in any process: requests are read once per process, the inner loop is native where
compiled.

No module of the simulation may be imported before `native.activate`; jobs therefore arrive as bytes and are
unpickled after it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import TypeVar

from blis_py import native

native.activate()

from blis_py.api import Simulation  # noqa: E402
from blis_py.config.models import RunConfig, descriptions  # noqa: E402
from blis_py.config.workload import WorkloadSection  # noqa: E402
from blis_py.errors import InputError  # noqa: E402
from blis_py.latency.scaled import scaled  # noqa: E402
from blis_py.metrics.slo import parse_slos  # noqa: E402
from blis_py.planning import early_stop  # noqa: E402
from blis_py.planning.contents import Contents, code_digest  # noqa: E402
from blis_py.planning.intervals import dispersion, intervals  # noqa: E402
from blis_py.planning.job import Job, JobOutcome, Variation  # noqa: E402
from blis_py.planning.longer import longer, resampled  # noqa: E402
from blis_py.requests.table import RequestTable  # noqa: E402
from blis_py.result import Result  # noqa: E402
from blis_py.sensitivity.reruns import numbers  # noqa: E402
from blis_py.setup.demand import Demand  # noqa: E402
from blis_py.setup.from_config import demand  # noqa: E402
from blis_py.setup.from_trace import as_recorded  # noqa: E402
from blis_py.setup.pools import PoolSetup  # noqa: E402
from blis_py.setup.setup import Setup  # noqa: E402
from blis_py.traces.reading import Reading  # noqa: E402

T = TypeVar("T")

_OTHER_CODE = "the worker has another version of blis-py: install the same on all machines"
_OTHER_FILES = "the worker finds other files under the names in the configuration"
_MAX_REMEMBERED = 4
_demands: dict[str, Demand] = {}
"""The requests of recent workloads."""
_traces: dict[str, tuple[RequestTable, Reading]] = {}
"""The readings of recent traces."""
_contents = Contents()


def pack(job: Job, key: str | None) -> bytes:
    """A job for `run`.

    Args:
        key: the result of `cache.key_of`; a remote machine must compute the same.
    """
    return pickle.dumps((job, key, code_digest()))


def run(packed: bytes) -> JobOutcome:
    """Run a job; every failure short of the end of the process becomes an outcome."""
    job, key, code = pickle.loads(packed)
    try:
        if code != code_digest():
            return JobOutcome(failed=_OTHER_CODE)
        if key is not None and key != _contents.key_of(job):
            return JobOutcome(failed=_OTHER_FILES)
        return _outcome(job)
    except InputError as error:
        return JobOutcome(refused=str(error))
    except MemoryError as error:
        return JobOutcome(failed=f"not enough memory: {error}")
    except Exception as error:
        return JobOutcome(failed=f"{type(error).__name__}: {error}")


def warm_up(job: Job) -> None:
    """Read the requests of a job, to be shared by processes forked from this one."""
    try:
        cached_demand(job.config)
    except InputError:
        return  # reported where the job is run


def varied(job: Job) -> Simulation:
    """The simulation of a job, with its variation."""
    length, load = job.variation.length, _at_once if job.variation.at_once else cached_demand
    simulation = Simulation.of(
        job.config, lambda config: _with_factors(longer(config, length, load), job.variation)
    )
    return _with_other_parts(simulation, job.variation)


def cached_demand(config: RunConfig) -> Demand:
    """The requests of a configuration, cached across jobs."""
    load = config.workload
    files = _contents.digests(config)
    when = (config.horizon, config.drain)
    parts = (load, config.seed, when, descriptions(config), config.admission.slo_priorities, files)
    return _remembered(_demands, repr(parts), lambda: demand(config, _as_recorded))


def _at_once(config: RunConfig) -> Demand:
    demand = cached_demand(config)
    return replace(demand, table=demand.table.at_once())


def _as_recorded(load: WorkloadSection, seed: int) -> tuple[RequestTable, Reading]:
    """Cached trace readings: a rate, and usually a seed, leaves the recording unchanged."""
    thinks_ms = load.think_time_ms if load.session_mode == "closed-loop" else None
    recorded = replace(load, rate=None, concurrency=None, think_time_ms=thinks_ms, eos_share=0.0)
    files = _contents.digests(RunConfig(workload=recorded))
    draws = load.slo_shares or load.think_time_dist
    name = repr((recorded, seed if draws else None, files))
    table, reading = _remembered(_traces, name, lambda: as_recorded(recorded, seed))
    return table, deepcopy(reading)


def _remembered(known: dict[str, T], name: str, make: Callable[[], T]) -> T:
    """A small LRU cache: the most recently used entry is the last."""
    value = known.pop(name) if name in known else make()
    known[name] = value
    while len(known) > _MAX_REMEMBERED:
        del known[next(iter(known))]
    return value


def _with_factors(demand: Demand, variation: Variation) -> Demand:
    if variation.resample is not None and demand.loops is None:
        demand = replace(demand, table=resampled(demand.table, variation.resample))
    table = demand.table.scaled(1 / variation.rate).with_lengths(variation.prompt, variation.output)
    return replace(demand, table=table)


def _with_other_parts(simulation: Simulation, variation: Variation) -> Simulation:
    """The same with other step times and KV blocks in every pool."""
    times = variation.gpu_time, variation.host_time
    pools = simulation.pools
    if times != (1.0, 1.0):
        pools = tuple(replace(pool, latency=scaled(pool.latency, *times)) for pool in pools)
    if variation.kv_blocks != 1.0:
        pools = tuple(_with_blocks(pool, variation.kv_blocks) for pool in pools)
    return replace(simulation, pools=pools)


def _with_blocks(pool: PoolSetup, factor: float) -> PoolSetup:
    blocks = max(round(pool.scheduler.num_kv_blocks * factor), 1)
    return replace(pool, scheduler=replace(pool.scheduler, num_kv_blocks=blocks))


def _outcome(job: Job) -> JobOutcome:
    simulation = varied(job)
    if job.stops_at:
        settled = _first_part(simulation, job.max_lost)
        if settled in job.stops_at:
            return JobOutcome(early_stop=settled, facts=_facts(simulation))
    return outcome_of(simulation.run(record_steps=False))


def _first_part(simulation: Simulation, max_lost: float) -> str | None:
    config, table = simulation.config, simulation.table
    checks = parse_slos(config.slo)
    if config.horizon is not None or config.workload.concurrency is not None or simulation.loops is not None:
        return None
    if not early_stop.worth_it(table, checks):
        return None
    until_us = early_stop.horizon_ns(table) // 1000 + 1
    part = replace(simulation, config=replace(config, horizon=until_us)).run(record_steps=False)
    return early_stop.judge(part.record, table, checks, max_lost)


def outcome_of(result: Result) -> JobOutcome:
    """Figures of a run."""
    totals = result.totals
    return JobOutcome(
        figures=dict(numbers(totals["cluster"])),
        classes={name: dict(numbers(part["goodput"] or {})) for name, part in totals["classes"].items()},
        slo=totals["slo"],
        verdict=totals["load"]["verdict"],
        facts={
            **_facts(result.simulation),
            "notes": list(result.notes),
            "intervals": {
                text: list(interval)  # as read back from the store
                for text, interval in intervals(result.record, parse_slos(result.config.slo)).items()
            },
        },
    )


def _facts(simulation: Setup) -> dict[str, object]:
    arrival_ns = simulation.table.arrival_ns
    comes = len(arrival_ns) > 0 and simulation.loops is None  # closed loops depend on answers
    span_s = float(arrival_ns[-1] - arrival_ns[0]) / 1e9 if comes else 0.0
    loops = simulation.closed_loops()
    return {
        "requests": len(arrival_ns) if loops is None else loops.most(simulation.table),
        "span_s": span_s,
        "dispersion": dispersion(arrival_ns) if comes else 1.0,
        "generated": simulation.config.workload.trace is None,
        "closed": loops is not None,
        "at_once": 0 if loops is None else loops.at_once(simulation.table),
        "offered_per_s": simulation.offered_per_s,
        "model": simulation.config.model,
        "gpu": simulation.config.gpu,
        "tp": simulation.config.tp,
        "gpus": sum(each.config.num_instances * each.config.tp for each in simulation.pools),
        **simulation.schedulers(),
        "capacity": simulation.capacity,
        "models": simulation.models,
        "provenance": "; ".join(pool.latency.provenance for pool in simulation.pools),
        "notes": list(simulation.notes),
    }
