"""Limits in which queueing theory knows what a routing policy reaches. Answers are memoryless."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np
import pytest
from queues import Ints, erlang_c, poisson, serve, slot_starts

from blis_py.cluster.flow_settings import FlowSettings
from blis_py.metrics.record import RunRecord

STEP_NS = 1_000
MEAN_STEPS = 200
SERVICE_NS = STEP_NS * MEAN_STEPS


def load(count: int, instances: int, utilisation: float, seed: int) -> tuple[Ints, Ints]:
    """Arrivals and steps of answers."""
    rng = np.random.default_rng(seed)
    arrival_ns = poisson(rng, count, SERVICE_NS / (instances * utilisation))
    return arrival_ns, rng.geometric(1 / MEAN_STEPS, count)


def routed(policy: str, count: int, instances: int, utilisation: float, **options: Any) -> RunRecord:
    """On instances of one slot, under a router that sees everything at once."""
    arrival_ns, steps = load(count, instances, utilisation, seed=4)
    options = {"num_instances": instances, "routing_policy": policy, "snapshot_refresh_ns": 0, **options}
    return serve(arrival_ns, 1, steps, STEP_NS, slots=1, num_kv_blocks=1_000, **options)


def mean_wait(record: RunRecord) -> float:
    """In mean answers; without the time until the step in progress ends, which counts as waiting."""
    waited_ns = record.scheduled_ns - record.table.arrival_ns
    return float((waited_ns - STEP_NS / 2 * (waited_ns > 0)).mean() / SERVICE_NS)


@pytest.mark.slow
def test_chance_makes_every_instance_a_queue_of_its_own() -> None:
    record = routed("random", 4_000, instances=4, utilisation=0.7)
    for index in range(4):
        rows = record.instance == index
        starts = slot_starts(record.table.arrival_ns[rows], record.table.output_tokens[rows], STEP_NS, 1)
        assert record.scheduled_ns[rows].tolist() == starts
    assert np.bincount(record.instance) == pytest.approx([1_000] * 4, rel=0.1)


@pytest.mark.slow
def test_two_choices_do_what_mitzenmacher_states_of_many_instances() -> None:
    """The share of instances with at least k requests is load^(2^k - 1); chance alone gives load^k."""
    instances, utilisation = 200, 0.7
    record = routed("power-of-two", 8_000, instances, utilisation)
    settled = np.arange(len(record.table)) > 2_000
    sojourn = float((record.finish_ns - record.table.arrival_ns)[settled].mean() / SERVICE_NS)
    expected = sum(utilisation ** (2**k - 2) for k in range(1, 8))
    assert sojourn == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
def test_under_least_loaded_no_request_waits_while_an_instance_is_idle() -> None:
    record = routed("least-loaded", 4_000, instances=5, utilisation=0.7)
    busy_until_ns = np.zeros(5, np.int64)
    for row, at_ns in enumerate(record.table.arrival_ns.tolist()):
        waits = record.scheduled_ns[row] > at_ns
        assert not waits or (busy_until_ns >= at_ns).all()
        index = record.instance[row]
        busy_until_ns[index] = max(busy_until_ns[index], record.finish_ns[row])
    assert 0.1 < (record.scheduled_ns > record.table.arrival_ns).mean() < 0.9


@pytest.mark.slow
def test_least_loaded_lies_between_one_queue_for_all_and_chance() -> None:
    servers, utilisation = 3, 0.6
    one_queue = erlang_c(servers, servers * utilisation) / (servers * (1 - utilisation))
    chance = utilisation / (1 - utilisation)
    joined = mean_wait(routed("least-loaded", 5_000, servers, utilisation))
    assert 1.02 * one_queue < joined < 0.6 * chance


def one_queue(arrival_ns: Ints, service_ns: Ints, servers: int) -> Ints:
    """When each starts: the first arrival goes to the server that is free first, a nanosecond later."""
    free_ns, starts = [-1] * servers, []
    for arrival, service in zip(arrival_ns.tolist(), service_ns.tolist(), strict=True):
        starts.append(max(arrival, heappop(free_ns) + 1))
        heappush(free_ns, starts[-1] + service)
    return np.array(starts)


@pytest.mark.slow
def test_a_queue_at_the_gateway_waits_as_in_m_m_c() -> None:
    """Every request is the one of the simple queue, and that queue waits as Erlang says."""
    servers, utilisation = 4, 0.7
    flow_control = FlowSettings(saturation_detector="concurrency", max_concurrency_per_instance=1)
    record = routed("least-loaded", 5_000, servers, utilisation, flow_control=flow_control)
    arrival_ns, steps = record.table.arrival_ns, record.table.output_tokens
    assert record.scheduled_ns.tolist() == one_queue(arrival_ns, steps * STEP_NS, servers).tolist()
    arrival_ns, steps = load(1_000_000, servers, utilisation, seed=4)  # standard error 0.7 %
    wait = (one_queue(arrival_ns, steps * STEP_NS, servers) - arrival_ns).mean() / SERVICE_NS
    expected = erlang_c(servers, servers * utilisation) / (servers * (1 - utilisation))
    assert wait == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
def test_the_requests_a_router_finds_are_those_of_littles_law() -> None:
    """Arrivals at random see the mean over time, which is rate × sojourn."""
    record = routed("round-robin", 5_000, instances=3, utilisation=0.8, record_decisions=0)
    assert record.decisions is not None
    found = record.decisions.in_flight.sum(axis=1).mean()
    rate = len(record.table) / record.end_ns
    sojourn_ns = (record.finish_ns - record.table.arrival_ns).mean()
    assert found == pytest.approx(rate * sojourn_ns, rel=0.03)
