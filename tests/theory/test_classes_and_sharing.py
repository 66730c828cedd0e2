"""Queues of classes, queues at the gateway and shared servers: closed forms, with intervals of 99.9 %."""

from __future__ import annotations

import numpy as np
import pytest
from intervals import agree
from queues import erlang_c, poisson, serve

from blis_py.cluster.flow_settings import FlowSettings
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import Labels

STEP_NS = 1_000
CLASSES = ("critical", "standard", "batch")
"""By urgency."""


def waits(record: RunRecord) -> np.ndarray:
    found: np.ndarray = (record.scheduled_ns - record.table.arrival_ns).astype(np.float64)
    return found


def geometric(mean: int) -> tuple[float, float]:
    """Mean and mean square."""
    return mean, mean * mean * (2 - 1 / mean)


@pytest.mark.slow
@pytest.mark.parametrize("utilisation", [0.3, 0.5])
def test_one_slot_and_memoryless_answers_wait_as_in_m_m_1(utilisation: float) -> None:
    rng = np.random.default_rng(21)
    mean, square = geometric(50)
    gap_ns = mean * STEP_NS / utilisation
    record = serve(poisson(rng, 40_000, gap_ns), 1, rng.geometric(1 / mean, 40_000), STEP_NS, slots=1)
    agree(waits(record), square * STEP_NS**2 / gap_ns / 2 / (1 - utilisation))


@pytest.mark.slow
def test_one_slot_and_equal_answers_wait_as_in_m_d_1_half_as_long() -> None:
    utilisation, steps = 0.6, 20
    gap_ns = steps * STEP_NS / utilisation
    record = serve(poisson(np.random.default_rng(22), 40_000, gap_ns), 1, steps, STEP_NS, slots=1)
    agree(waits(record), steps * STEP_NS * utilisation / (2 * (1 - utilisation)))


def by_class(scheduler: str, count: int = 60_000) -> tuple[RunRecord, list[float], float]:
    """A third of each class; also the load of each, and the mean work left of the one in service."""
    rng = np.random.default_rng(23)
    mean, square = geometric(40)
    gap_ns = mean * STEP_NS / 0.6
    codes = rng.integers(0, 3, count).astype(np.int32)
    record = serve(
        poisson(rng, count, gap_ns), 1, rng.geometric(1 / mean, count), STEP_NS, slots=1,
        scheduler=scheduler, slo_class=Labels(codes, CLASSES),
    )  # fmt: skip
    return record, [0.2] * 3, square * STEP_NS**2 / gap_ns / 2


def cobham(loads: list[float], residual: float, rank: int) -> float:
    """Mean wait of a class by its rank, without preemption."""
    more_urgent = sum(loads[:rank])
    return residual / ((1 - more_urgent) * (1 - more_urgent - loads[rank]))


@pytest.mark.slow
def test_under_priorities_every_class_waits_as_cobham_says() -> None:
    record, loads, residual = by_class("priority-fcfs")
    for rank in range(3):
        agree(waits(record)[record.table.slo_class.codes == rank], cobham(loads, residual, rank))


@pytest.mark.slow
def test_priority_is_paid_for_by_the_other_classes_as_kleinrocks_law_says() -> None:
    """Whatever the order, the mean wait over classes that are served equally long is that of one queue."""
    for scheduler in ("fcfs", "priority-fcfs", "reverse-priority"):
        record, loads, residual = by_class(scheduler)
        agree(waits(record), residual / (1 - sum(loads)))


@pytest.mark.slow
def test_shortest_prompt_first_is_cobhams_order_of_two_classes() -> None:
    """A prompt of so many chunks is so many steps, and emits its only token with the last of them."""
    rng, count, chunk = np.random.default_rng(24), 60_000, 100
    is_long = rng.random(count) < 0.1
    steps = np.where(is_long, 30, 3)
    gap_ns = (0.9 * 3 + 0.1 * 30) * STEP_NS / 0.5
    loads = [0.9 * 3 * STEP_NS / gap_ns, 0.1 * 30 * STEP_NS / gap_ns]
    residual = (0.9 * 3**2 + 0.1 * 30**2) * STEP_NS**2 / gap_ns / 2
    record = serve(
        poisson(rng, count, gap_ns), steps * chunk, 1, STEP_NS, slots=1,
        scheduler="sjf", max_num_batched_tokens=chunk,
    )  # fmt: skip
    agree(waits(record)[~is_long], cobham(loads, residual, 0))
    agree(waits(record)[is_long], cobham(loads, residual, 1))


@pytest.mark.slow
def test_erlangs_share_of_the_requests_waits_at_the_gateway_and_as_long_as_he_says() -> None:
    servers, utilisation, mean, count = 3, 0.6, 60, 40_000
    rng = np.random.default_rng(25)
    gap_ns = mean * STEP_NS / (servers * utilisation)
    record = serve(
        poisson(rng, count, gap_ns), 1, rng.geometric(1 / mean, count), STEP_NS, slots=1,
        num_instances=servers, routing_policy="least-loaded", snapshot_refresh_ns=0,
        flow_control=FlowSettings(saturation_detector="concurrency", max_concurrency_per_instance=1),
    )  # fmt: skip
    assert record.gateway_ns is not None
    waited = erlang_c(servers, servers * utilisation)
    agree((record.gateway_ns > 0).astype(float), waited)
    agree(record.gateway_ns, waited * mean * STEP_NS / (servers * (1 - utilisation)))


@pytest.mark.slow
def test_littles_law_holds_of_the_queue_at_the_gateway() -> None:
    """Requests that wait there at a random time are the rate times the mean wait."""
    rng = np.random.default_rng(26)
    count, mean = 20_000, 60
    arrival_ns = poisson(rng, count, mean * STEP_NS / 1.2)
    record = serve(
        arrival_ns, 1, rng.geometric(1 / mean, count), STEP_NS, slots=1,
        num_instances=2, routing_policy="least-loaded", snapshot_refresh_ns=0,
        flow_control=FlowSettings(saturation_detector="concurrency", max_concurrency_per_instance=1),
    )  # fmt: skip
    assert record.gateway_ns is not None
    leave_ns = np.sort(arrival_ns + record.gateway_ns)
    times = np.sort(rng.integers(0, arrival_ns[-1], 20_000))
    there = np.searchsorted(arrival_ns, times, "right") - np.searchsorted(leave_ns, times, "right")
    agree(there, float(record.gateway_ns.sum() / arrival_ns[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("lengths", ["equal", "memoryless", "two kinds"])
def test_steps_as_long_as_their_batch_share_the_server_equally(lengths: str) -> None:
    """Processor sharing: a request takes its own work / (1 - load), whatever the lengths of the others."""
    rng, count, mean, load = np.random.default_rng(27), 15_000, 200, 0.6
    tokens = {
        "equal": np.full(count, mean),
        "memoryless": rng.geometric(1 / mean, count),
        "two kinds": np.where(rng.random(count) < 0.9, 100, 1_100),
    }[lengths]
    per_token = LinearCosts(decode_seqs=STEP_NS, prefill_seqs=STEP_NS)
    record = serve(
        poisson(rng, count, mean * STEP_NS / load), 1, tokens, STEP_NS, slots=10_000,
        latency=Linear(LinearCoefficients(gpu=per_token)),
    )  # fmt: skip
    stretched = (record.finish_ns - record.table.arrival_ns) / (tokens * STEP_NS)
    long_enough = tokens >= 50  # an arrival waits for the end of a step, which is small beside its own
    agree(stretched[long_enough], 1 / (1 - load))
