"""Prefill and decode apart in a closed loop: when a client goes on."""

from __future__ import annotations

import numpy as np
import pytest
from apart import US, cluster, requests
from cluster_runs import Row
from test_sessions_in_closed_loop import conversations, source

from blis_py.cluster.ingress.closed_loop import ClosedLoop
from blis_py.cluster.simulation import ClusterSimulation
from blis_py.metrics.invariants import check
from blis_py.metrics.record import Outcome
from blis_py.metrics.visits import Onward


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


@pytest.mark.parametrize("handoff", ["vllm", "trtllm", "trtllm-generation-first", "sglang", "blis"])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_turns_that_visit_two_pools_are_causal_and_each_session_ends_once(
    handoff: str, async_scheduling: bool
) -> None:
    """Some give up or can never be served: the turns behind them are counted, not lost."""
    rng = np.random.default_rng(5)
    count, sessions = 48, 12
    session = np.repeat(np.arange(sessions), count // sessions)
    patience = rng.choice([-1, -1, -1, 60, 200], count)
    prompts, outputs = rng.integers(1, 60, count), rng.choice([1, 2, 9, 30], count)
    prompts[13] = 500  # longer than any sequence
    rows = [
        Row(int(20 * n), int(prompt), int(output), patience_us=int(patient))
        for n, prompt, output, patient in zip(session, prompts, outputs, patience, strict=True)
    ]
    table = conversations(rows, session.tolist(), rng.integers(0, 80, count).tolist())
    records = []
    for single_step in (False, True):
        whole = cluster(handoff, prefill=2, decode=2, async_scheduling=async_scheduling)
        simulation = ClusterSimulation(source(table), whole, single_step=single_step)
        records.append(simulation.run())
    record, single = records
    check(record)
    assert record.finish_ns.tolist() == single.finish_ns.tolist()
    assert record.table.arrival_ns.tolist() == single.table.arrival_ns.tolist()
    assert (record.visits.outcome == Onward.HANDED_OVER).sum() > 10
    sent = record.table
    assert sent.session is not None
    assert sent.think_ns is not None
    answered = np.isin(record.outcome, (Outcome.COMPLETED, Outcome.LENGTH_CAPPED))
    for number in range(sessions):
        turns = np.flatnonzero(sent.session.data == number)
        turns = turns[np.argsort(sent.arrival_ns[turns])]
        assert answered[turns[:-1]].all(), "nothing follows a turn without an answer"
        earliest = record.finish_ns[turns[:-1]] + sent.think_ns[turns[1:]]
        assert (sent.arrival_ns[turns[1:]] == earliest).all()
    assert record.unsent_turns is not None
    assert len(sent) + record.unsent_turns.cancelled == count
    assert record.unsent_turns.cancelled > 0
