"""What scheduling policies are good for, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest
from queues import Ints, poisson, serve

from blis_py.metrics.record import RunRecord
from blis_py.requests.table import Labels

STEP_NS = 10_000_000
POLICIES = ("fcfs", "priority-fcfs", "sjf", "reverse-priority")
CLASSES = ("critical", "standard", "batch")


def mixed(policy: str, mean_gap_ns: float, slots: int, count: int = 1_500) -> RunRecord:
    """A third each of critical, standard and batch."""
    rng = np.random.default_rng(4)
    classes = Labels(np.arange(count, dtype=np.int32) % 3, CLASSES)
    return serve(
        poisson(rng, count, mean_gap_ns), rng.integers(20, 400, count), rng.integers(5, 30, count), STEP_NS,
        slots, scheduler=policy, slo_class=classes,
    )  # fmt: skip


def ttft_ms(record: RunRecord, slo_class: str) -> float:
    rows = record.table.slo_class.codes == record.table.slo_class.names.index(slo_class)
    return float((record.first_token_ns - record.table.arrival_ns)[rows].mean() / 1e6)


def test_at_low_load_all_schedulers_are_the_same_within_5_percent() -> None:
    records = {policy: mixed(policy, 25 * STEP_NS, slots=8) for policy in POLICIES}
    for measure in ("first_token_ns", "finish_ns"):
        means = [float((getattr(r, measure) - r.table.arrival_ns).mean()) for r in records.values()]
        assert max(means) <= 1.05 * min(means)


def test_under_overload_critical_requests_gain_from_priority_and_lose_by_its_reverse() -> None:
    # 8 slots serve one request in about 2.1 steps; one comes every 1.5.
    ttft = {policy: ttft_ms(mixed(policy, 1.5 * STEP_NS, slots=8), "critical") for policy in POLICIES}
    assert ttft["priority-fcfs"] < 0.1 * ttft["fcfs"]
    assert ttft["reverse-priority"] > 1.3 * ttft["fcfs"]
    assert max(ttft, key=lambda policy: ttft[policy]) == "reverse-priority"


def test_what_critical_requests_gain_the_batch_class_pays() -> None:
    by_arrival, by_class = (mixed(policy, 1.5 * STEP_NS, slots=8) for policy in ("fcfs", "priority-fcfs"))
    assert ttft_ms(by_class, "batch") > ttft_ms(by_arrival, "batch")
    assert by_class.instances[0].priority_inversions == 0
    assert by_arrival.instances[0].priority_inversions > 100


def overloaded_shorts_and_one_long(**settings: object) -> tuple[RunRecord, Ints]:
    """One long prompt among short ones that come faster than they are served, for 2,000 steps."""
    rng = np.random.default_rng(6)
    arrival_ns = poisson(rng, 2_000, STEP_NS * 0.9)
    prompt = np.full(2_000, 10)
    prompt[20] = 500
    record = serve(arrival_ns, prompt, 1, STEP_NS, slots=1, **settings)
    return record, record.scheduled_ns - arrival_ns


def test_sjf_starves_a_long_prompt_as_long_as_short_ones_keep_coming() -> None:
    record, wait_ns = overloaded_shorts_and_one_long(scheduler="sjf")
    last_arrival_ns = record.table.arrival_ns[-1]
    assert record.scheduled_ns[20] > last_arrival_ns
    assert wait_ns[20] == wait_ns.max()


def test_an_aging_bound_ends_the_starvation() -> None:
    bound_ms = 500.0
    _, starved = overloaded_shorts_and_one_long(scheduler="sjf")
    _, aged = overloaded_shorts_and_one_long(scheduler="sjf", sjf_aging_ms=bound_ms)
    _, by_arrival = overloaded_shorts_and_one_long(scheduler="fcfs")
    # A request over the bound goes first by arrival, so it waits for the earlier ones at most.
    assert aged[20] <= max(bound_ms * 1e6, by_arrival[20]) + 2 * STEP_NS
    assert aged[20] < 0.1 * starved[20]


@pytest.mark.parametrize("former", ["running-first", "prefill-first"])
def test_shortest_first_lowers_the_mean_wait_under_load(former: str) -> None:
    rng = np.random.default_rng(9)
    count = 1_000
    arrival_ns = poisson(rng, count, 1.2 * STEP_NS)
    prompt = np.where(rng.random(count) < 0.1, 4_000, 100)

    def mean_wait(policy: str) -> float:
        record = serve(
            arrival_ns, prompt, 1, STEP_NS, slots=4, scheduler=policy, batch_former=former,
            max_num_batched_tokens=400,
        )  # fmt: skip
        return float((record.first_token_ns - arrival_ns).mean())

    assert mean_wait("sjf") < 0.7 * mean_wait("fcfs")
