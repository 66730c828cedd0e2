"""Instances of different capacity: every policy gives requests in relation to it, and alike ones as ever."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from apart import US, cluster, requests

import blis_py as blis
from blis_py.cluster.simulation import ClusterSimulation
from blis_py.cluster.topology import Cluster, Ingress, Pool
from blis_py.errors import InputError
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.metrics.invariants import check
from blis_py.metrics.record import RunRecord

SLOWER = 3


def fleet(policy: str, weights: tuple[float, float], scorers: dict[str, float] | None = None) -> Cluster:
    """An instance, and one with steps three times as long."""
    fast = cluster("vllm").pools[0].spec
    costs = LinearCosts(step=SLOWER * 10 * US, prefill_tokens=SLOWER * US)
    slow = replace(fast, latency=Linear(LinearCoefficients(gpu=costs)))
    pools = (
        Pool(name="fast", spec=fast, weight=weights[0]),
        Pool(name="slow", spec=slow, weight=weights[1]),
    )
    ingress = Ingress(routing_policy=policy, routing_scorers=scorers, snapshot_refresh_ns=0)
    return Cluster(pools=pools, ingress=ingress)


def run(policy: str, weights: tuple[float, float], gap_us: int, **how: bool) -> RunRecord:
    count = 400
    table = requests([gap_us * i for i in range(count)], [20] * count, [9] * count)
    scorers = {"load-balance": 1.0} if policy == "weighted" else None
    record = ClusterSimulation(table, fleet(policy, weights, scorers), **how).run()
    check(record)
    return record


def share(record: RunRecord) -> float:
    return Counter(record.instance.tolist())[0] / len(record.table)


def test_turns_are_as_frequent_and_as_even_as_the_capacities_say() -> None:
    order = run("round-robin", (3.0, 1.0), 100).instance.tolist()
    assert order[:8] == [0, 0, 1, 0, 0, 0, 1, 0]
    assert order == order[:4] * 100
    assert run("round-robin", (2.0, 2.0), 100).instance.tolist() == [0, 1] * 200, "alike: in turn"


@pytest.mark.parametrize(
    ("policy", "least", "most"),
    [("round-robin", 0.75, 0.75), ("random", 0.70, 0.80), ("least-loaded", 0.70, 0.80),
     ("power-of-two", 0.70, 0.80), ("weighted", 0.70, 0.80)],
)  # fmt: skip
def test_a_saturated_fleet_is_loaded_in_relation_to_its_capacities(
    policy: str, least: float, most: float
) -> None:
    """All requests arrive at once: by number alone each instance would get half."""
    record = run(policy, (3.0, 1.0), 0)
    assert least <= share(record) <= most
    assert 0.4 <= share(run(policy, (1.0, 1.0), 0)) <= 0.6
    single = run(policy, (3.0, 1.0), 0, single_step=True)
    assert record.finish_ns.tolist() == single.finish_ns.tolist()


def test_an_instance_that_comes_later_has_the_capacity_of_its_pool() -> None:
    simulation = ClusterSimulation(
        requests([0, 100, 200, 300, 400, 500], [20] * 6, [2] * 6), fleet("round-robin", (3.0, 1.0))
    )
    simulation.call_at(50 * US, lambda now_ns: simulation.fleet.add("fast"))
    record = simulation.run()
    assert sorted(Counter(record.instance.tolist()).items()) == [(0, 3), (1, 1), (2, 2)]


POOLS = [
    {"name": "new", "gpu": "h100"},
    {"name": "old", "gpu": "l40s"},
]


def test_capacities_are_those_of_the_step_times_unless_a_pool_states_otherwise() -> None:
    settings = {"model": "llama-3.1-8b", "workload": "chat", "rate": 5, "num_requests": 30}
    modelled = blis.build(pools=POOLS, capacity_weights=True, **settings)
    new, old = (pool.weight for pool in modelled.cluster().pools)
    assert 2 < new / old < 6, "3.35 against 0.86 TB/s, and the same ratio of FLOP/s"
    assert any(note.startswith("routed by capacity of an instance: new 1, old 0.") for note in modelled.notes)
    said = blis.build(pools=[POOLS[0], {**POOLS[1], "weight": 0.5}], **settings)
    assert [pool.weight for pool in said.cluster().pools] == [1.0, 0.5]
    assert {pool.weight for pool in blis.build(pools=POOLS, **settings).cluster().pools} == {1.0}


def test_capacities_of_alike_instances_are_refused() -> None:
    with pytest.raises(InputError, match="all instances are alike"):
        blis.build(model="llama-3.1-8b", gpu="h100", workload="chat", rate=5, capacity_weights=True)
