"""Limits in which queueing theory knows the answer."""

from __future__ import annotations

import numpy as np
import pytest
from queues import erlang_c, poisson, serve

STEP_NS = 1_000_000


@pytest.mark.parametrize(("utilisation", "count"), [(0.5, 60_000), (0.7, 120_000)])
def test_one_sequence_and_constant_steps_wait_as_in_m_d_1(utilisation: float, count: int) -> None:
    rng = np.random.default_rng(20)
    arrival_ns = poisson(rng, count, STEP_NS / utilisation)
    record = serve(arrival_ns, 10, 1, STEP_NS, slots=1)
    mean_wait_ns = (record.scheduled_ns - arrival_ns).mean()
    pollaczek_khinchine_ns = utilisation * STEP_NS / (2 * (1 - utilisation))
    assert mean_wait_ns == pytest.approx(pollaczek_khinchine_ns, rel=0.02)


def test_every_single_wait_is_the_one_of_lindleys_recursion() -> None:
    arrival_ns = poisson(np.random.default_rng(3), 5_000, STEP_NS / 0.9)
    record = serve(arrival_ns, 10, 1, STEP_NS, slots=1)
    free_ns = 0
    for arrival, scheduled in zip(arrival_ns.tolist(), record.scheduled_ns.tolist(), strict=True):
        assert scheduled == max(arrival, free_ns)
        free_ns = scheduled + STEP_NS


def test_slots_and_geometric_answers_wait_as_in_m_m_c() -> None:
    """A step costs the same for any batch, so each slot is a server; a geometric answer is memoryless."""
    servers, mean_tokens, utilisation, step_ns = 4, 200, 0.75, 1_000
    rng = np.random.default_rng(11)
    count = 60_000
    service_ns = mean_tokens * step_ns
    arrival_ns = poisson(rng, count, service_ns / (servers * utilisation))
    record = serve(arrival_ns, 1, rng.geometric(1 / mean_tokens, count), step_ns, slots=servers)
    mean_wait_ns = (record.scheduled_ns - arrival_ns).mean()
    expected_ns = erlang_c(servers, servers * utilisation) * service_ns / (servers * (1 - utilisation))
    expected_ns += step_ns / 2  # an arrival is seen at the end of the step in progress
    assert mean_wait_ns == pytest.approx(expected_ns, rel=0.05)


def test_littles_law_ties_the_steps_table_to_the_requests() -> None:
    rng = np.random.default_rng(5)
    count = 5_000
    arrival_ns = poisson(rng, count, 40 * STEP_NS)
    record = serve(arrival_ns, 10, rng.geometric(1 / 100, count), STEP_NS, slots=4, record_steps=True)
    runs = record.instances[0].runs
    assert runs is not None
    present = runs["waiting"] + runs["running"]
    mean_number = (present * (runs["end_ns"] - runs["start_ns"])).sum() / record.end_ns
    rate = count / record.end_ns
    mean_sojourn_ns = (record.finish_ns - record.table.arrival_ns).mean()
    # The table sees an arrival at the end of the step in progress.
    assert mean_number == pytest.approx(rate * (mean_sojourn_ns - STEP_NS / 2), rel=0.01)


def test_instances_by_turns_are_independent_queues() -> None:
    arrival_ns = poisson(np.random.default_rng(8), 3_000, STEP_NS / 1.5)
    together = serve(arrival_ns, 10, 1, STEP_NS, slots=1, num_instances=2)
    for turn in range(2):
        alone = serve(arrival_ns[turn::2], 10, 1, STEP_NS, slots=1)
        assert (together.finish_ns[turn::2] == alone.finish_ns).all()


def test_a_shared_choice_waits_less_than_turns() -> None:
    arrival_ns = poisson(np.random.default_rng(8), 10_000, STEP_NS / 1.6)
    waits = {
        policy: (
            serve(arrival_ns, 10, 1, STEP_NS, slots=1, num_instances=2, routing_policy=policy).scheduled_ns
            - arrival_ns
        ).mean()
        for policy in ("round-robin", "least-loaded")
    }
    assert waits["least-loaded"] < 0.8 * waits["round-robin"]


def test_twice_the_steps_time_and_gaps_give_twice_all_times() -> None:
    arrival_ns = poisson(np.random.default_rng(1), 1_000, STEP_NS)
    output = np.random.default_rng(2).integers(1, 40, 1_000)
    once = serve(arrival_ns, 50, output, STEP_NS, slots=16)
    twice = serve(2 * arrival_ns, 50, output, 2 * STEP_NS, slots=16)
    assert (twice.finish_ns == 2 * once.finish_ns).all()
