"""Requests handed over within their pool in the middle of their answer, with public parts alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from test_prefill_and_decode import US, spec, table

from blis_py.cluster.simulation import ClusterSimulation
from blis_py.cluster.topology import Cluster, Pool
from blis_py.core.request import Request
from blis_py.metrics.invariants import check
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.metrics.visits import Onward


class MovesOnce:
    """After some tokens a request goes on at the next instance in turn, which computes its KV anew."""

    def __init__(self, simulation: ClusterSimulation, after_tokens: int) -> None:
        self._simulation, self._after = simulation, after_tokens
        self._limits: dict[int, tuple[int | None, int]] = {}
        self._moved: set[int] = set()

    def enters(self, request: Request) -> None:
        if request.row not in self._limits:
            self._limits[request.row] = request.output_tokens, request.max_tokens
            request.max_tokens = min(request.max_tokens, self._after)
        else:
            self._moved.add(request.row)

    def way_on(self, request: Request) -> Onward | None:
        output_tokens, max_tokens = self._limits[request.row]
        done = request.row in self._moved or min(output_tokens or max_tokens, max_tokens) <= self._after
        return None if done else Onward.HANDED_OVER

    def take(self, requests: Sequence[Request], end_ns: int) -> None:
        for request in requests:
            self._simulation.send_on(request.next_visit(*self._limits[request.row]), "all", end_ns)


def moved(single_step: bool) -> RunRecord:
    simulation = ClusterSimulation(
        table([0, 5], [20, 30], [8, 2]),
        Cluster(pools=(Pool(name="all", count=2, spec=spec()),)),
        single_step=single_step,
    )
    simulation.connect("all", MovesOnce(simulation, 3))
    return simulation.run()


@pytest.mark.parametrize("single_step", [False, True])
def test_a_request_that_moves_gets_its_whole_answer(single_step: bool) -> None:
    record = moved(single_step)
    check(record)
    visits = record.visits
    assert record.emitted_tokens.tolist() == [8, 2]
    assert visits.request.tolist() == [0, 1, 0]
    assert visits.outcome.tolist() == [Onward.HANDED_OVER, Outcome.COMPLETED, Outcome.COMPLETED]
    assert visits.emitted_tokens.tolist() == [3, 2, 5]
    # 10 + 20 us for the prompt, and 10 for each of two decode steps; then all is computed again
    assert visits.finish_ns[0] == 50 * US
    assert sum(one.prefill_tokens for one in record.instances) >= 20 + 30 + 20 + 3
