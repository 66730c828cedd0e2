"""Kinds of random configurations; each follows from a seed, and a run of it from the settings it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from random import Random
from typing import Any

import numpy as np
from cluster_runs import LATENCIES, Run, table_of
from kv_tier import Tier
from ledger_runs import DENOISING, denoising
from routed_runs import routed, routed_on_ranks
from small_runs import random_requests, spec
from test_prefill_and_decode import FromPrefill, HandOver

from blis_py.cluster.instances.diffusion import BlockDiffusion
from blis_py.cluster.routing.policies import ROUTING_POLICIES
from blis_py.cluster.simulation import ClusterSimulation
from blis_py.cluster.topology import Cluster, Ingress, Pool
from blis_py.core.request import Request
from blis_py.latency.base import LatencyModel
from blis_py.metrics.record import RunRecord

US, MS = 1_000, 1_000_000


@dataclass(frozen=True)
class Configuration:
    """What is run, and what prices it."""

    record: Callable[..., RunRecord]
    """Runs it; keywords of `ClusterSimulation`."""
    latency: LatencyModel
    diffusion: BlockDiffusion | None = None
    has_single_steps: bool = True
    """Whether the run of single steps is the same."""


class Drafts:
    """Up to `depth` drafts a step for some requests; how many of them are right differs from step to step."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def is_irregular(self, request: Request) -> bool:
        return self._depth > 0 and request.row % 3 > 0

    def rows(self, request: Request) -> int:
        return 1 + self._depth

    def tokens(self, request: Request, step: int, rows: int) -> int:
        return 1 + (step + request.row) % rows


def routed_by_prefix(rng: Random) -> Configuration:
    """See `routed_runs`."""
    run = routed(rng)
    return Configuration(run.record, LATENCIES[run.latency])


def routed_to_ranks(rng: Random) -> Configuration:
    """See `routed_runs`."""
    run = routed_on_ranks(rng)
    return Configuration(run.record, LATENCIES[run.latency])


def block_diffusion(rng: Random) -> Configuration:
    """See `ledger_runs.denoising`. A re-loop saves returns to the scheduler, which single steps make."""
    first_out, in_place, reloop = (rng.random() < 0.5 for _ in range(3))
    run, diffusion = denoising(
        rng.randrange(10**6),
        timeout_ns=rng.choice([0, 0, 40 * MS]),
        modes=(first_out, in_place, reloop),
        num_kv_blocks=rng.choice([13, 20, 400]),
        budget=rng.choice([96, 2048]),
        horizon_ns=rng.choice([None, None, 100 * MS]),
        cost_ns=rng.choice([0, 5 * US]),
    )
    return Configuration(run, DENOISING, diffusion, not (first_out and reloop))


def two_pools(rng: Random) -> Configuration:
    """Prefill and decode apart, some requests with bursts, KV scarce or not."""
    table = random_requests(rng)
    decode_ns, depth = rng.choice([0, US]), rng.choice([0, 0, 1, 3])
    settings = {
        "num_kv_blocks": rng.choice([32, 60, 1000]),
        "async_scheduling": rng.random() < 0.5,
        "prefix_cache": rng.choice(["hash", "radix", "none"]),
        "batch_former": rng.choice(["running-first", "running-first", "prefill-first"]),
        "max_num_batched_tokens": rng.choice([16, 2048]),
        "max_num_seqs": rng.choice([2, 256]),
    }
    delay_ns, horizon_ns = US * rng.choice([0, 7, 200]), rng.choice([None, None, 700 * US])
    count, policy = rng.choice([1, 2]), rng.choice(sorted(ROUTING_POLICIES))
    ingress = Ingress(routing_policy=policy, snapshot_refresh_ns=rng.choice([0, 30 * US]))
    supplied = rng.random() < 0.7
    instance = spec(decode_seqs=decode_ns, **settings)

    def record(**more: Any) -> RunRecord:
        decodes = replace(instance, emission=Drafts(depth), kv_source=FromPrefill() if supplied else None)
        prefill = Pool(name="prefill", role="prefill", count=2, spec=instance)
        decode = Pool(name="decode", role="decode", count=count, spec=decodes)
        pools = Cluster(pools=(prefill, decode), ingress=ingress)
        simulation = ClusterSimulation(table, pools, **{"horizon_ns": horizon_ns, **more})
        simulation.connect("prefill", HandOver(simulation, delay_ns))
        return simulation.run()

    return Configuration(record, instance.latency)


def changing_fleet(rng: Random) -> Configuration:
    """Instances come and go; some have a KV tier in common, or drafts."""
    run = routed(rng)
    settings = dict(run.options)
    count, horizon_ns = settings.pop("num_instances"), settings.pop("horizon_ns")
    tiered, depth = rng.random() < 0.3, rng.choice([0, 0, 2])
    changes = sorted((rng.randrange(1, 2000) * US, rng.random()) for _ in range(rng.randrange(1, 7)))
    ready_after_ns = rng.choice([0, 50 * US, 400 * US])
    latency = LATENCIES[run.latency]

    def record(**more: Any) -> RunRecord:
        tier = Tier(run.config.block_size) if tiered else None
        emission = Drafts(depth) if depth else None
        cluster = Cluster.of(scheduler=run.config, latency=latency, num_instances=count, **settings)
        (pool,) = cluster.pools
        pool = replace(pool, spec=replace(pool.spec, kv_source=tier, emission=emission))
        simulation = ClusterSimulation(
            _table(run), replace(cluster, pools=(pool,)), **{"horizon_ns": horizon_ns, **more}
        )
        if tier is not None:
            simulation.connect(pool.name, tier)
        fleet = simulation.fleet

        def change(share: float) -> None:
            if share < 0.5 or len(fleet.ready) < 2:
                fleet.add(pool.name, ready_after_ns)
            else:
                fleet.drain(fleet.ready[int((share - 0.5) * 2 * len(fleet.ready))])

        for time_ns, share in changes:
            simulation.call_at(time_ns, lambda now_ns, share=share: change(share))
        return simulation.run()

    return Configuration(record, latency)


def _table(run: Run) -> Any:
    return table_of(run.rows)


KINDS: dict[str, Callable[[Random], Configuration]] = {
    "routed": routed_by_prefix,
    "ranks": routed_to_ranks,
    "diffusion": block_diffusion,
    "two-pools": two_pools,
    "fleet": changing_fleet,
}


def digest(record: RunRecord) -> str:
    """Of everything that `differences` compares."""
    found = sha256()
    for part in (record, record.visits, record.visits.emission, *record.instances):
        for column in fields(part):
            value = getattr(part, column.name)
            if isinstance(value, np.ndarray):
                found.update(value.tobytes())
            elif isinstance(value, int):
                found.update(f"{column.name} {value} ".encode())
    for instance in record.instances:
        found.update(instance.step_ends.at(np.arange(instance.step_ends.steps)).tobytes())
    return found.hexdigest()[:16]
