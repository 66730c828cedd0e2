"""Limits in which queueing theory knows the answer."""

from __future__ import annotations

import numpy as np
import pytest
from queues import erlang_c, poisson, serve, slot_starts

STEP_NS = 1_000_000


@pytest.mark.parametrize(("slots", "tokens_each"), [(1, 1), (1, 7), (3, 7), (5, 30)])
def test_every_start_is_that_of_a_first_come_first_served_queue(slots: int, tokens_each: int) -> None:
    rng = np.random.default_rng(3)
    arrival_ns = poisson(rng, 2_000, STEP_NS * tokens_each / (0.9 * slots))
    tokens = rng.geometric(1 / tokens_each, len(arrival_ns))
    record = serve(arrival_ns, 10, tokens, STEP_NS, slots)
    assert record.scheduled_ns.tolist() == slot_starts(arrival_ns, tokens, STEP_NS, slots)
    assert (record.finish_ns == record.scheduled_ns + tokens * STEP_NS).all()


@pytest.mark.slow
def test_one_sequence_and_constant_steps_wait_as_in_m_d_1() -> None:
    utilisation, count = 0.5, 40_000  # standard error 1 %
    arrival_ns = poisson(np.random.default_rng(1), count, STEP_NS / utilisation)
    record = serve(arrival_ns, 10, 1, STEP_NS, slots=1)
    mean_wait_ns = (record.scheduled_ns - arrival_ns).mean()
    pollaczek_khinchine_ns = utilisation * STEP_NS / (2 * (1 - utilisation))
    assert mean_wait_ns == pytest.approx(pollaczek_khinchine_ns, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("utilisation", [0.3, 0.6])
def test_the_queue_that_every_start_is_that_of_waits_as_in_m_d_1(utilisation: float) -> None:
    arrival_ns = poisson(np.random.default_rng(2), 1_000_000, STEP_NS / utilisation)
    mean_wait_ns = np.mean(slot_starts(arrival_ns, 1, STEP_NS, 1) - arrival_ns)
    assert mean_wait_ns == pytest.approx(utilisation * STEP_NS / (2 * (1 - utilisation)), rel=0.01)


@pytest.mark.slow
def test_slots_and_geometric_answers_wait_as_in_m_m_c() -> None:
    """A step costs the same for any batch, so each slot is a server; a geometric answer is memoryless."""
    servers, mean_tokens, utilisation, count, step_ns = 4, 300, 0.6, 600_000, 1_000
    rng = np.random.default_rng(11)
    service_ns = mean_tokens * step_ns
    arrival_ns = poisson(rng, count, service_ns / (servers * utilisation))
    tokens = rng.geometric(1 / mean_tokens, count)
    mean_wait_ns = np.mean(slot_starts(arrival_ns, tokens, step_ns, servers) - arrival_ns)
    expected_ns = erlang_c(servers, servers * utilisation) * service_ns / (servers * (1 - utilisation))
    expected_ns += step_ns / 2  # an arrival is seen at the end of the step in progress
    assert mean_wait_ns == pytest.approx(expected_ns, rel=0.03)
    few = serve(arrival_ns[:3_000], 1, tokens[:3_000], step_ns, servers)
    assert few.scheduled_ns.tolist() == slot_starts(arrival_ns[:3_000], tokens[:3_000], step_ns, servers)


@pytest.mark.slow
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


def test_turns_are_as_good_as_one_queue_for_all_if_everyone_takes_equally_long() -> None:
    arrival_ns = poisson(np.random.default_rng(8), 3_000, STEP_NS / 1.6)
    record = serve(arrival_ns, 10, 1, STEP_NS, slots=1, num_instances=2)
    free_ns = [0, 0]
    for arrival, scheduled in zip(arrival_ns.tolist(), record.scheduled_ns.tolist(), strict=True):
        assert scheduled == max(arrival, min(free_ns))
        free_ns = [max(free_ns), scheduled + STEP_NS]


@pytest.mark.slow
def test_looking_at_the_load_beats_turns_if_requests_differ_in_length() -> None:
    rng = np.random.default_rng(8)
    arrival_ns = poisson(rng, 3_000, 20 * STEP_NS / 1.6)
    tokens = rng.geometric(1 / 20, len(arrival_ns))
    by_turns, by_load = (
        serve(
            arrival_ns, 10, tokens, STEP_NS, slots=1, num_instances=2, routing_policy=policy,
            snapshot_refresh_ns=0,
        ).scheduled_ns - arrival_ns
        for policy in ("round-robin", "least-loaded")
    )  # fmt: skip
    assert by_load.mean() < 0.8 * by_turns.mean()


def test_twice_the_steps_time_and_gaps_give_twice_all_times() -> None:
    arrival_ns = poisson(np.random.default_rng(1), 1_000, STEP_NS)
    output = np.random.default_rng(2).integers(1, 40, 1_000)
    once = serve(arrival_ns, 50, output, STEP_NS, slots=16)
    twice = serve(2 * arrival_ns, 50, output, 2 * STEP_NS, slots=16)
    assert (twice.finish_ns == 2 * once.finish_ns).all()
