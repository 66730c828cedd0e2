"""Workloads and measures for the limits in which queueing theory knows the answer."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray
from one_pool import simulate

from blis_py.core.config import SchedulerConfig
from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.latency.step_run import PricedRun, StepRun
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import RequestTable

Ints = NDArray[np.int64]


class ConstantSteps:
    """Every step lasts as long, whatever is in it."""

    name = "constant"
    provenance = "assumed"
    frontend = FrontendDelays()
    uses_max_context = False

    def __init__(self, ns: int) -> None:
        self._ns = ns

    def step(self, features: StepFeatures) -> StepTime:
        return StepTime(self._ns, 0)

    def step_ns(self, features: StepFeatures) -> int:
        return self._ns

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        ends_ns = range(start_ns + self._ns, start_ns + self._ns * steps + 1, self._ns)
        return PricedRun(ends_ns).until(until_ns)


def poisson(rng: np.random.Generator, count: int, mean_gap_ns: float) -> Ints:
    """Arrival times."""
    return np.cumsum(rng.exponential(mean_gap_ns, count)).astype(np.int64)


def serve(
    arrival_ns: Ints, prompt: Ints | int, output: Ints | int, step_ns: int, slots: int, **settings: Any
) -> RunRecord:
    """One instance with room for everything but more than `slots` at a time; steps are constant or priced."""
    count = len(arrival_ns)
    options = {
        k: settings.pop(k)
        for k in (
            *("num_instances", "routing_policy", "snapshot_refresh_ns"),
            *("record_steps", "record_decisions", "flow_control"),
        )
        if k in settings
    }
    table = RequestTable.build(
        arrival_ns,
        np.broadcast_to(np.int64(prompt), count).copy(),
        np.broadcast_to(np.int64(output), count).copy(),
        slo_class=settings.pop("slo_class", None),
    )
    latency = settings.pop("latency", ConstantSteps(step_ns))
    config = SchedulerConfig(
        max_model_len=10**5,
        max_num_seqs=slots,
        enable_prefix_caching=False,
        **{"num_kv_blocks": 10**5, "max_num_batched_tokens": 10**6, **settings},
    )
    return simulate(table, scheduler=config, latency=latency, **options)


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival waits in M/M/c; `load` in units of servers."""
    blocking = 1.0
    for n in range(1, servers + 1):
        blocking = load * blocking / (n + load * blocking)
    return blocking / (1 - load / servers * (1 - blocking))


def slot_starts(arrival_ns: Ints, tokens: Ints | int, step_ns: int, slots: int) -> list[int]:
    """When each request of one token per step starts, if an arrival is seen at the end of a step.

    First come first served on `slots` servers (Lindley's recursion for one, Kiefer and Wolfowitz' for
    more), on a grid of steps that begins anew with every arrival at an idle instance.
    """
    free_ns = [0] * slots
    grid_ns, starts = 0, []
    counts = np.broadcast_to(tokens, len(arrival_ns)).tolist()
    for arrival, count in zip(arrival_ns.tolist(), counts, strict=True):
        if arrival >= max(free_ns):
            grid_ns = arrival
        seen_ns = grid_ns - (grid_ns - arrival) // step_ns * step_ns
        start = max(seen_ns, heappop(free_ns))
        heappush(free_ns, start + count * step_ns)
        starts.append(start)
    return starts
