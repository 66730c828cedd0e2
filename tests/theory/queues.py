"""Workloads and measures for the limits in which queueing theory knows the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.cluster.simulation import simulate
from blis_py.core.config import SchedulerConfig
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.metrics.record import RunRecord
from blis_py.workload.table import RequestTable

Ints = NDArray[np.int64]


def constant_steps(step_ns: int) -> Linear:
    """Every step lasts as long, whatever is in it."""
    return Linear(LinearCoefficients(gpu=LinearCosts(step=step_ns)))


def poisson(rng: np.random.Generator, count: int, mean_gap_ns: float) -> Ints:
    """Arrival times."""
    return np.cumsum(rng.exponential(mean_gap_ns, count)).astype(np.int64)


def serve(
    arrival_ns: Ints, prompt: Ints | int, output: Ints | int, step_ns: int, slots: int, **settings: Any
) -> RunRecord:
    """One instance with constant steps and room for everything but more than `slots` at a time."""
    count = len(arrival_ns)
    options = {
        k: settings.pop(k) for k in ("num_instances", "routing_policy", "record_steps") if k in settings
    }
    table = RequestTable.build(
        arrival_ns,
        np.broadcast_to(np.int64(prompt), count).copy(),
        np.broadcast_to(np.int64(output), count).copy(),
        slo_class=settings.pop("slo_class", None),
    )
    config = SchedulerConfig(
        num_kv_blocks=10**6,
        max_model_len=10**6,
        max_num_seqs=slots,
        enable_prefix_caching=False,
        **{"max_num_batched_tokens": 10**6, **settings},
    )
    return simulate(table, scheduler=config, latency=constant_steps(step_ns), **options)


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival waits in M/M/c; `load` in units of servers."""
    blocking = 1.0
    for n in range(1, servers + 1):
        blocking = load * blocking / (n + load * blocking)
    return blocking / (1 - load / servers * (1 - blocking))
