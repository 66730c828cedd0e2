"""Clusters with prefill and decode apart: steps of 10 us and 1 us for each prefill token, 1 GB/s per link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from cluster_runs import on_ranks

from blis_py.cluster.simulation import ClusterSimulation
from blis_py.cluster.topology import Cluster, Disaggregation, Ingress, InstanceSpec, Link, Pool
from blis_py.core.config import SchedulerConfig
from blis_py.latency.base import FrontendDelays
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.metrics.itl import TokenGaps
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import RequestTable

US = 1000
BLOCK_BYTES = 4000
"""A block of 4 tokens; with 1 GB/s a token takes 1 us."""
OF_LINK = ("latency_ns", "bandwidth_gbps", "contended", "efficiency", "node_gbps", "gpus_per_node")
OF_CLUSTER = ("prefill", "decode", "shared", "policy", "kv_layers", "ranks")
OF_DISAGGREGATION = tuple(Disaggregation.__dataclass_fields__)


def cluster(handoff: str, **settings: Any) -> Cluster:
    """
    Args:
        settings: of the scheduler, `OF_LINK`, `OF_CLUSTER` and `OF_DISAGGREGATION`; and
            `before_enqueue_ns` of the front end. `ranks` are those of each pool, by its name.
    """
    frontend = FrontendDelays(before_enqueue_ns=settings.pop("before_enqueue_ns", 0))
    link = {name: settings.pop(name) for name in OF_LINK if name in settings}
    own = {name: settings.pop(name) for name in OF_CLUSTER if name in settings}
    apart = {name: settings.pop(name) for name in OF_DISAGGREGATION if name in settings}
    scheduler = SchedulerConfig(**{"num_kv_blocks": 1000, "max_model_len": 400, "block_size": 4, **settings})
    costs = LinearCosts(step=10 * US, prefill_tokens=US)
    latency = Linear(LinearCoefficients(gpu=costs, frontend=frontend))
    layers = own.get("kv_layers", 1)
    spec = InstanceSpec(scheduler=scheduler, latency=latency, kv_block_bytes=BLOCK_BYTES, kv_layers=layers)
    roles = {"prefill": "prefill", "decode": "decode", "shared": "both"}
    counts = {"prefill": 1, "decode": 1, "shared": 0} | {k: n for k, n in own.items() if k in roles}
    ranks = own.get("ranks", {})
    specs = {name: replace(spec, scheduler=on_ranks(scheduler, ranks.get(name, 1))) for name in counts}
    pools = tuple(Pool(name=n, role=roles[n], count=c, spec=specs[n]) for n, c in counts.items() if c)
    links = tuple(
        Link(from_pool=a.name, to_pool=b.name, **{"latency_ns": 3 * US, "bandwidth_gbps": 1.0, **link})
        for a in pools
        for b in pools
        if a.role != "decode" and b.role != "prefill"
    )
    ingress = Ingress(routing_policy=own.get("policy", "round-robin"), snapshot_refresh_ns=0)
    return Cluster(
        pools=pools, links=links, ingress=ingress, disaggregation=Disaggregation(handoff=handoff, **apart)
    )


def requests(
    arrivals_us: Sequence[int],
    prompts: Sequence[int],
    outputs: Sequence[int],
    deadlines_us: Sequence[int] | None = None,
    shared: Sequence[tuple[str, int]] = (),
) -> RequestTable:
    """
    Args:
        deadlines_us: absolute; -1 = none.
        shared: name and length of the text that each prompt begins with.
    """
    deadlines = [-1] * len(arrivals_us) if deadlines_us is None else deadlines_us
    return RequestTable.build(
        np.array(arrivals_us, np.int64) * US,
        np.array(prompts, np.int64),
        np.array(outputs, np.int64),
        deadline_ns=np.array([-1 if one < 0 else one * US for one in deadlines], np.int64),
        content=np.array([i if shared and shared[i][1] else -1 for i in range(len(arrivals_us))]),
        contents=[(run,) for run in shared],
    )


def simulate(table: RequestTable, handoff: str, **settings: Any) -> RunRecord:
    """
    Args:
        settings: of `cluster`, and `single_step`, `horizon_ns`, `observer`.
    """
    run = {name: settings.pop(name) for name in ("single_step", "horizon_ns", "observer") if name in settings}
    return ClusterSimulation(table, cluster(handoff, **settings), **run).run()


def token_times(record: RunRecord, row: int = 0) -> list[int]:
    gaps, _ = TokenGaps(record).of_each(np.array([row]))
    first = int(record.first_token_ns[row])
    return [first // US, *((first + np.cumsum(gaps)) // US).tolist()]
