"""Prefill and decode apart in a closed loop: when a client goes on."""

from __future__ import annotations

import pytest
from apart import US, cluster, requests

from blis_py.cluster.closed_loop import ClosedLoop
from blis_py.cluster.simulation import ClusterSimulation
from blis_py.metrics.record import Outcome


@pytest.mark.parametrize("single_step", [False, True])
def test_patience_that_ends_in_the_last_step_of_an_answer_on_the_decode_instance_is_enough(
    single_step: bool,
) -> None:
    """The step in progress on the prefill instance says nothing of it."""
    table = requests([0, 1, 2], [20, 200, 8], [9, 2, 2], deadlines_us=[118, -1, -1])
    simulation = ClusterSimulation(
        ClosedLoop(table, 2), cluster("vllm", bandwidth_gbps=None), single_step=single_step
    )
    record = simulation.run()
    assert record.outcome.tolist() == [Outcome.COMPLETED] * 3
    assert record.finish_ns[0] == 124 * US
    assert record.table.arrival_ns[2] == record.finish_ns[0]
