"""Clients that give up and instances that drain or fail during a hand-over; see `apart` for the times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from apart import US, cluster, requests, simulate, token_times

from blis_py.cluster.simulation import ClusterSimulation
from blis_py.metrics.invariants import check
from blis_py.metrics.record import Outcome, RunRecord


def ends(table: Any, handoff: str, **settings: Any) -> tuple[RunRecord, ClusterSimulation]:
    simulation = ClusterSimulation(table, cluster(handoff, **settings))
    instances = simulation.fleet.instances
    record = simulation.run()
    assert not instances, "closed"
    check(record)
    return record, simulation


@pytest.mark.parametrize("handoff", ["vllm", "trtllm", "trtllm-generation-first", "sglang", "blis"])
@pytest.mark.parametrize("deadline_us", [5, 29, 31, 45, 55, 60, 70])
def test_a_client_that_gives_up_anywhere_leaves_nothing_behind(handoff: str, deadline_us: int) -> None:
    table = requests([0, 200], [20, 20], [4, 4], [deadline_us, -1])
    record, simulation = ends(table, handoff, num_kv_blocks=9)
    assert record.outcome.tolist() == [Outcome.TIMED_OUT, Outcome.COMPLETED]
    alone = simulate(requests([200], [20], [4]), handoff, num_kv_blocks=9)
    assert record.finish_ns[1] == alone.finish_ns[0], "all links and blocks are free again"
    assert simulation.handoff is not None
    assert simulation.handoff.under_way == 0


@pytest.mark.parametrize("handoff", ["vllm", "trtllm", "trtllm-generation-first", "sglang", "blis"])
@pytest.mark.parametrize("leaves", ["prefill", "decode"])
@pytest.mark.parametrize("at_us", [1, 31, 54])
def test_an_instance_that_drains_finishes_what_it_has_and_goes(handoff: str, leaves: str, at_us: int) -> None:
    """On either side, one of two: before, during and after the transfer."""
    table = requests([0, 1, 100, 101], [20] * 4, [4] * 4)
    simulation = ClusterSimulation(table, cluster(handoff, prefill=2, decode=2))
    index = 0 if leaves == "prefill" else 2
    simulation.call_at(at_us * US, lambda now_ns: simulation.fleet.drain(index))
    record = simulation.run()
    check(record)
    assert record.outcome.tolist() == [Outcome.COMPLETED] * 4
    gone_ns = record.instances[index].gone_ns
    assert gone_ns is not None
    there = record.visits.instance == index
    assert (record.visits.finish_ns[there] <= gone_ns).all()
    if leaves == "prefill" and handoff != "blis":
        assert gone_ns == 53 * US if at_us < 53 else at_us * US, "its blocks were read until then"


@pytest.mark.parametrize("handoff", ["vllm", "trtllm", "trtllm-generation-first", "sglang", "blis"])
@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("at_us", [5, 31, 52, 70])
def test_an_instance_that_fails_takes_its_requests_and_its_kv_with_it(
    handoff: str, side: str, at_us: int
) -> None:
    """During the prefill, at the begin and at the end of the transfer, and of the first decodes; the other
    pair goes on, and later requests use its instances. With the turns of BLIS one pair gets all."""
    table = requests([0, 0, 300], [20] * 3, [4] * 3)
    simulation = ClusterSimulation(table, cluster(handoff, prefill=2, decode=2))
    instances = list(simulation.fleet.instances)
    index = 0 if side == "prefill" else 2
    simulation.call_at(at_us * US, lambda now_ns: simulation.fail(index))
    record = simulation.run()
    check(record)
    failed = record.outcome == Outcome.EVICTED
    assert (failed | (record.outcome == Outcome.COMPLETED)).all()
    served = side == "prefill" and at_us == 70
    if handoff != "blis":
        assert failed.tolist() == [not served, False, False]
    if failed[0]:
        assert record.rejection is not None
        assert record.rejection.names[record.rejection.codes[0]] == "instance failed"
    for instance in instances:
        scheduler = instance.scheduler  # type: ignore[attr-defined]
        scheduler.check()
        assert scheduler.kv.pool.num_free == scheduler.kv.pool.total
    assert simulation.handoff is not None
    network = simulation.handoff.network
    assert simulation.handoff.under_way == network.under_way == 0
    assert network.moved_bytes + network.cancelled_bytes == network.sent_bytes


@pytest.mark.parametrize(("index", "evicted"), [(1, {0: 1, 2: 1}), (2, {1: 0, 3: 2})])
def test_a_request_in_the_queue_of_a_decode_instance_that_fails_is_recorded_there(
    index: int, evicted: dict[int, int]
) -> None:
    """Under SGLang it waits for blocks before its prefill begins: the first one at each instance has all.

    Of the first ones, one ends its prefill before it can be evicted; the other one waits for it.
    """
    table = requests([0, 0, 1, 1], [40, 40, 40, 40], [4] * 4)
    simulation = ClusterSimulation(table, cluster("sglang", decode=2, num_kv_blocks=12))
    simulation.call_at(20 * US, lambda now_ns: simulation.fail(index))
    record = simulation.run()
    check(record)
    rows = np.flatnonzero(record.outcome == Outcome.EVICTED).tolist()
    assert dict(zip(rows, record.instance[rows].tolist(), strict=True)) == evicted


@pytest.mark.parametrize("at_us", [31, 52])
def test_a_prompt_whose_prefill_instance_failed_may_be_computed_again(at_us: int) -> None:
    """Its KV was on the way since 30; the decode instance has its blocks already."""
    settings = {"prefill": 2, "load_failure_policy": "recompute"}
    simulation = ClusterSimulation(requests([0], [20], [4]), cluster("vllm", **settings))
    simulation.call_at(at_us * US, lambda now_ns: simulation.fail(0))
    record = simulation.run()
    check(record)
    assert token_times(record) == [at_us + 30, at_us + 40, at_us + 50, at_us + 60]
