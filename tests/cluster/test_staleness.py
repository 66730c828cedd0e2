"""How old what the router knows is, to the nanosecond."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cluster_runs import Row, linear, table_of
from hypothesis import given, settings
from hypothesis import strategies as st
from one_pool import simulate

from blis_py.cluster.routing.policies import ROUTING_POLICIES
from blis_py.cluster.routing.router import RouterSetup
from blis_py.core.config import SchedulerConfig
from blis_py.core.request import Request
from blis_py.metrics.decisions import Decisions

US = 1000
STEP_NS = 10 * US
CONFIG = SchedulerConfig(num_kv_blocks=400, max_model_len=6_000, max_num_seqs=4)


def decisions(rows: list[Row], config: SchedulerConfig = CONFIG, **options: Any) -> Decisions:
    record = simulate(
        table_of(rows), scheduler=config, latency=linear(STEP_NS), record_decisions=0, **options
    )
    assert record.decisions is not None
    return record.decisions


def by_instance(seen: Decisions, name: str) -> Any:
    """Shape (decisions, instances)."""
    values = np.empty_like(getattr(seen, name))
    np.put_along_axis(values, seen.candidates, getattr(seen, name), axis=1)
    return values


def reports(times_ns: list[int], interval_ns: int) -> list[int]:
    """With which of these looks the report that is known at each of them was made; -1 = none was."""
    made, latest, latest_ns = [], -1, 0
    for look, time_ns in enumerate(times_ns):
        if time_ns - latest_ns >= interval_ns:
            latest, latest_ns = look, time_ns
        made.append(latest)
    return made


@pytest.mark.slow
@settings(max_examples=60)
@given(
    at_us=st.lists(st.integers(0, 400), min_size=2, max_size=25),
    interval_us=st.sampled_from([0, 1, 10, 49, 50, 120, 10_000]),
    policy=st.sampled_from(["round-robin", "least-loaded", "random"]),
)
def test_the_router_reads_the_state_of_the_latest_report_and_its_own_counts_as_they_are(
    at_us: list[int], interval_us: int, policy: str
) -> None:
    """One request after the other runs for 100 µs; what the state was then is counted from the outcome."""
    rows = [Row(at, 20, 10, 10) for at in sorted(at_us)]
    options = {"num_instances": 2, "routing_policy": policy, "snapshot_refresh_ns": interval_us * US}
    record = simulate(
        table_of(rows), scheduler=CONFIG, latency=linear(STEP_NS), record_decisions=0, **options
    )
    seen = record.decisions
    assert seen is not None
    looks = reports(seen.time_ns.tolist(), interval_us * US)
    for index in range(2):
        here = record.instance == index
        for decision, (now_ns, look) in enumerate(zip(seen.time_ns, looks, strict=True)):
            before = here & (np.arange(len(rows)) < decision)
            unended = record.finish_ns >= now_ns  # a step that ends now is seen by the next one
            assert by_instance(seen, "in_flight")[decision, index] == (before & unended).sum()
            then_ns = seen.time_ns[look]
            sent = here & (np.arange(len(rows)) < look)  # none where there was no report
            running = sent & (record.scheduled_ns < then_ns) & (record.finish_ns >= then_ns)
            waiting = sent & (record.scheduled_ns >= then_ns)
            assert by_instance(seen, "batch_size")[decision, index] == running.sum()
            assert by_instance(seen, "queue_depth")[decision, index] == waiting.sum()


@pytest.mark.parametrize("single_step", [False, True])
@pytest.mark.parametrize(("cache", "known_us"), [("hash", 0), ("radix", 10)])
def test_what_a_cache_holds_is_known_after_the_delay_and_not_before(
    cache: str, known_us: int, single_step: bool
) -> None:
    """A hash cache names blocks as a step is planned, a radix cache when it is over."""
    shared = (("system", 64),)
    rows = [Row(0, 80, 30, 30, runs=shared), *(Row(7 * i, 80, 1, 1, runs=shared) for i in range(1, 12))]
    for delay_us in (0, 20, 35, 50):
        options = {"cache_delay_ns": delay_us * US, "single_step": single_step}
        seen = decisions(rows, replace(CONFIG, prefix_cache=cache), **options)
        looks = reports(seen.time_ns.tolist(), delay_us * US)
        expected = [4 if look >= 0 and seen.time_ns[look] > known_us * US else 0 for look in looks]
        assert seen.cached_blocks[:, 0].tolist() == expected


class TwoHere:
    """The first two requests go to instance 0, undisturbed after that; the others to instance 1."""

    looks_at_load = False

    def __init__(self, setup: RouterSetup) -> None: ...

    def __call__(self, request: Request, now_ns: int) -> int:
        return int(request.row >= 2)


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_tokens_that_are_decoded_push_out_unused_blocks_step_by_step(
    cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decode takes a block of 4 tokens every fourth step: the last of the cached prefix that is left."""
    monkeypatch.setitem(ROUTING_POLICIES, "two-here", TwoHere)
    config = SchedulerConfig(num_kv_blocks=20, max_model_len=80, block_size=4, prefix_cache=cache)
    shared = (("a", 40),)
    rows = [Row(0, 41, 1, 1, runs=shared), Row(20, 33, 40, 40)]
    rows += [Row(35 + 40 * i, 41, 1, 1, runs=shared, patience_us=0) for i in range(9)]
    options: dict[str, Any] = {"num_instances": 2, "snapshot_refresh_ns": 0, "cache_delay_ns": 0}
    for single_step in (False, True):
        seen = decisions(rows, config, routing_policy="two-here", single_step=single_step, **options)
        held = by_instance(seen, "cached_blocks")[2:, 0].tolist()
        in_use = (by_instance(seen, "kv_utilization")[2:, 0] * 20).round().tolist()
        assert in_use == [9, *range(10, 18)]
        assert held == [10, 10, 9, 8, 7, 6, 5, 4, 3]
