"""Random streams of routers: that of a pool behind a link is its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from apart import US, cluster, requests

from blis_py.cluster.simulation import ClusterSimulation
from blis_py.core.request import Request
from blis_py.metrics.record import RunRecord
from blis_py.metrics.visits import Onward

COUNT = 40


class ToDecode:
    """An outlet: every request goes on at the decode pool once its prompt is computed."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self._limits: dict[int, tuple[int | None, int]] = {}

    def enters(self, request: Request) -> None:
        self._limits[request.row] = request.output_tokens, request.max_tokens
        request.max_tokens = 1

    def way_on(self, request: Request) -> Onward | None:
        return Onward.HANDED_OVER

    def take(self, handed_over: Sequence[Request], end_ns: int) -> None:
        for request in handed_over:
            self._simulation.send_on(request.next_visit(*self._limits[request.row]), "decode", end_ns)


def chosen(policy: str, seed: int = 1) -> tuple[list[int], list[int]]:
    """Prefill and decode instances of requests that come one at a time.

    Args:
        policy: at the ingress; decode instances are chosen at random.
    """
    table = requests(range(0, 1000 * COUNT, 1000), [20] * COUNT, [3] * COUNT)
    whole = cluster("vllm", prefill=4, decode=4, policy=policy)
    pools = tuple(
        replace(pool, routing_policy="random" if pool.role == "decode" else None) for pool in whole.pools
    )
    whole = replace(whole, pools=pools, links=(), disaggregation=None)
    simulation = ClusterSimulation(table, whole, seed=seed)
    simulation.connect("prefill", ToDecode(simulation))
    return instances(simulation.run())


def instances(record: RunRecord) -> tuple[list[int], list[int]]:
    visits = record.visits
    assert visits.finish_ns.max() < 1000 * COUNT * US
    first, second = visits.instance[:COUNT], visits.instance[COUNT:]
    return first.tolist(), (second[np.argsort(visits.request[COUNT:])] - 4).tolist()


def test_draws_at_the_ingress_change_no_choice_behind_a_link() -> None:
    (in_turn, after_turns), (drawn, after_draws) = chosen("round-robin"), chosen("random")
    assert in_turn != drawn
    assert after_turns == after_draws


def test_a_pool_behind_a_link_does_not_repeat_the_draws_of_the_ingress() -> None:
    drawn, behind = chosen("random")
    assert drawn != behind
    assert len(set(behind)) == 4


def test_another_seed_gives_other_choices() -> None:
    assert chosen("random", seed=1)[1] != chosen("random", seed=2)[1]
