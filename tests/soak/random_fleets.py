"""Random fleets as users configure them: engines, pools, hand-overs, attention DP, admission, flow control,
scarce KV, clients that time out, instances that are added, drained and fail.

Each follows from its seed. A run ends without an error and keeps every invariant of a record, and its jumps
equal its single steps: `python tests/soak/random_fleets.py --runs 1000 --seed 0`, a part of `make soak`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(1, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[1] / "cluster"))

import numpy as np
from cluster_runs import Row, differences, table_of

import blis_py as blis
from blis_py.cluster.ingress.saturation import SATURATION_DETECTORS
from blis_py.cluster.ingress.source import Source
from blis_py.cluster.routing.policies import ROUTING_POLICIES
from blis_py.cluster.simulation import ClusterSimulation
from blis_py.cluster.topology import Cluster
from blis_py.errors import InputError
from blis_py.metrics import summarise
from blis_py.metrics.invariants import InternalError, check
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import RequestTable

CLASSES = ("critical", "standard", "batch", "sheddable", "background", "")
MS = 1_000_000
TALKS = """
version: '2'
seed: 1
aggregate_rate: {rate}
num_requests: {requests}
clients:
- id: a
  rate_fraction: 1
  arrival: {{process: poisson}}
  closed_loop: true
  input_distribution: {{type: constant, params: {{value: 90}}}}
  output_distribution: {{type: constant, params: {{value: 30}}}}
  reasoning:
    reason_ratio_distribution: {{type: constant, params: {{value: 0}}}}
    multi_turn: {{max_rounds: 4, think_time_us: 9000, context_growth: accumulate}}
"""
"""Conversations whose turns follow their answers."""


def settings(rng: Random) -> dict[str, Any]:
    """Settings of a run; some combinations are refused."""
    engine = rng.choice(["vllm", "sglang", "trtllm", "blis"])
    ranks = rng.choice([1, 1, 1, 2, 4]) if engine != "blis" else 1
    found: dict[str, Any] = {
        "model": "qwen3-14b",
        "gpu": "h100",
        "engine": engine,
        "routing_policy": rng.choice(sorted(ROUTING_POLICIES)),
        "max_num_seqs": rng.choice([2, 3, 8, 64]) * ranks,
        "num_kv_blocks": rng.choice([120, 300, 2000]) * ranks,
    }
    if ranks > 1:
        found |= {"tp": ranks, "attention_dp": ranks}
    if rng.random() < 0.65:
        found |= {"prefill_instances": rng.randint(1, 3), "decode_instances": rng.randint(1, 3)}
        if rng.random() < 0.2:
            found["pd_decider"] = rng.choice(["always", "prefix-threshold"])
    else:
        found["num_instances"] = rng.randint(1, 4)
    found |= _admission(rng) | _flow(rng)
    if rng.random() < 0.3:
        found["snapshot_refresh_interval"] = rng.choice([1000, 40_000])
    if rng.random() < 0.3:
        found |= {
            "admission_latency": rng.choice([0, 2000]),
            "routing_latency": rng.choice([0, 3000]),
        }
    if rng.random() < 0.3:
        found["scheduler"] = rng.choice(["sjf", "priority-fcfs", "lpm", "hrrn"])
    return found | (_rules(rng) if engine == "vllm" else {})


def _rules(rng: Random) -> dict[str, Any]:
    """A release of vLLM, and what one can set of its rules."""
    found: dict[str, Any] = {"engine": rng.choice(["vllm-0.10", "vllm-0.15", "vllm-0.24", "vllm"])}
    if rng.random() < 0.3:
        found["watermark"] = rng.choice([0.01, 0.1, 0.4])
    if rng.random() < 0.3:
        found["prefill_schedule_interval"] = rng.choice([2, 3, 9])
    if rng.random() < 0.3:
        found["long_prefill_token_threshold"] = rng.choice([16, 200])
        found["long_prefill_token_threshold_adaptive"] = rng.random() < 0.5
    if rng.random() < 0.3:
        found["preemption_policy"] = "priority"
    return found


def _admission(rng: Random) -> dict[str, Any]:
    return rng.choice(
        [
            {},
            {},
            {"admission_policy": "tier-shed", "tier_shed_threshold": rng.choice([0, 2, 10])},
            {"admission_policy": "gaie-legacy", "gaie_qd_threshold": rng.choice([1, 5])},
            {"admission_policy": "token-bucket"},
            {"tenant_budgets": {"a": 0.01, "b": 0.5}},
        ]
    )


def _flow(rng: Random) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {}
    found: dict[str, Any] = {
        "flow_control": True,
        "saturation_detector": rng.choice(sorted(SATURATION_DETECTORS)),
        "dispatch_order": rng.choice(["fifo", "priority", "slo-deadline"]),
        "in_flight_eviction": rng.random() < 0.5,
    }
    if found["saturation_detector"] == "concurrency":
        found["max_concurrency_per_instance"] = rng.choice([1, 3, 20])
    if rng.random() < 0.3:
        found |= {"max_gateway_queue_depth": rng.choice([1, 20]), "queue_shedding": rng.random() < 0.5}
    if rng.random() < 0.3:
        found["request_ttl"] = rng.choice([5000, 300_000])
    return found


def requests(rng: Random) -> list[Row]:
    """Some of them with shared prefixes, classes, tenants, and clients that time out."""
    gap_us, longest = rng.choice([0, 300, 5000, 30_000]), rng.choice([200, 1800])
    at_us, rows = 0, []
    for number in range(rng.randint(20, 120)):
        at_us += rng.randrange(2 * gap_us + 1)
        prompt, output = rng.randint(1, longest), rng.choice([1, 2, rng.randint(1, 60)])
        shared = rng.randrange(prompt)
        runs = (("shared", shared), (f"own {number}", prompt + output - shared)) if rng.random() < 0.4 else ()
        patience_us = rng.choice([-1, -1, -1, rng.randrange(1, 400_000)])
        limit = rng.choice([0, output, output + rng.randint(0, 9)])
        rows.append(
            Row(at_us, prompt, output, limit, rng.choice(CLASSES), rng.choice("abc"), patience_us, runs)
        )
    return rows


REFUSED = "refused"
Change = tuple[int, str, float]
"""Time in ns, what happens, and which pool or instance as a share."""


def changes(rng: Random) -> list[Change]:
    """Instances that are added, drained or fail."""
    if rng.random() < 0.5:
        return []
    kinds = ["add", "drain", "fail"]
    return sorted(
        (rng.randrange(1, 800) * MS, rng.choice(kinds), rng.random()) for _ in range(rng.randint(1, 5))
    )


def traffic(rng: Random, given: dict[str, Any]) -> Callable[[], RequestTable | Source]:
    """Source of the requests: a table, users of a closed loop, or conversations that wait for answers."""
    if rng.random() < 0.6:
        rows = requests(rng)
        return lambda: table_of(rows)
    load: dict[str, Any] = {"num_requests": rng.randint(20, 80), "output_tokens": 30, "prompt_tokens": 300}
    if rng.random() < 0.5:
        load |= {"concurrency": rng.randint(1, 20)}
    else:
        path = Path(tempfile.mkdtemp()) / "spec.yaml"
        path.write_text(TALKS.format(requests=load["num_requests"], rate=rng.choice([5, 100])))
        load = {"workload_spec": str(path)}
    return blis.build(**given, **load)._source


def record(cluster: Cluster, demand: RequestTable | Source, events: list[Change], **more: Any) -> RunRecord:
    simulation = ClusterSimulation(demand, cluster, seed=1, **more)
    for time_ns, what, share in events:
        simulation.call_at(time_ns, _change(simulation, what, share))
    found = simulation.run()
    check(found)
    summarise(found)
    return found


def _change(simulation: ClusterSimulation, what: str, share: float) -> Callable[[int], None]:
    fleet = simulation.fleet

    def act(now_ns: int) -> None:
        if what == "add":
            pools = simulation.cluster.pools
            fleet.add(pools[int(share * len(pools))].name, ready_after_ns=int(share * 50) * MS)
        elif fleet.ready:
            index = fleet.ready[int(share * len(fleet.ready))]
            (fleet.drain if what == "drain" else simulation.fail)(index)

    return act


def violations(seed: int) -> Iterator[str]:
    """What does not hold of a fleet; `REFUSED` alone where its settings are."""
    rng = Random(seed)
    given, events = settings(rng), changes(rng)
    horizon_ns = rng.choice([None, None, None, 300 * MS])
    try:
        cluster, demand = blis.build(**given).cluster(), traffic(rng, given)
    except InputError:
        yield REFUSED
        return
    try:
        jumps = record(cluster, demand(), events, horizon_ns=horizon_ns)
        steps = record(cluster, demand(), events, horizon_ns=horizon_ns, single_step=True)
    except InputError:
        yield REFUSED
        return
    except (AssertionError, InternalError, LookupError, RuntimeError, TypeError, ValueError) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        yield f"{type(error).__name__}: {str(error)[:160]} at {Path(where.filename).name}:{where.lineno}"
        return
    wrong = differences(jumps, steps)
    if wrong:
        yield f"a jump is not its steps: {wrong[:3]}"
    if len(jumps.table) and not np.isin(jumps.outcome, range(9)).all():
        yield "a request without an outcome"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first fleet")
    given = parser.parse_args()
    bad = refused = 0
    for seed in range(given.seed, given.seed + given.runs):
        for wrong in violations(seed):
            if wrong == REFUSED:
                refused += 1
                continue
            bad += 1
            print(f"fleet {seed}: {wrong}", flush=True)
    print(f"{given.runs} fleets, {refused} of them refused, {bad} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
