"""Dynamo's router, worked out by hand. See `apart` for the times of steps and links."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from apart import cluster, requests, simulate

from blis_py.cluster.simulation import ClusterSimulation
from blis_py.metrics.invariants import check
from blis_py.metrics.record import RunRecord
from blis_py.metrics.visits import Role

DYNAMO: dict[str, Any] = {"policy": "dynamo", "prefill": 2, "decode": 2}


def went_to(record: RunRecord, role: Role) -> list[int]:
    """Instance of each request's visit of that role."""
    visits = record.visits
    there = visits.role == role
    return [index for _, index in sorted(zip(visits.request[there], visits.instance[there], strict=True))]


@pytest.mark.parametrize("handoff", ["vllm", "trtllm", "sglang"])
def test_a_prompt_goes_where_fewest_prompt_tokens_are_left_to_compute(handoff: str) -> None:
    """60 beside 10, 20, and 50; at 25 us 10 of these are done, at 80 all."""
    table = requests([0, 1, 2, 3, 25, 80, 81], [60, 10, 10, 30, 15, 40, 10], [2] * 7)
    to = went_to(simulate(table, handoff, **DYNAMO), Role.PREFILL)
    first, other = to[0], 1 - to[0]
    assert to == [first, other, other, other, other, first, other]


@pytest.mark.parametrize(
    ("handoff", "order"), [("vllm", "prefill-first"), ("vllm", "decode-first"), ("sglang", "decode-first")]
)
def test_a_decode_instance_is_chosen_by_the_prompts_that_have_not_ended_there(
    handoff: str, order: str
) -> None:
    """A long prompt on one, three short ones on the other; when the long one has ended, its place is free."""
    table = requests([0, 200, 400, 600, 3000], [60, 10, 10, 10, 10], [200, 300, 300, 300, 4])
    to = went_to(simulate(table, handoff, pair_order=order, **DYNAMO), Role.DECODE)
    first, other = to[0], 5 - to[0]
    assert to == [first, other, other, other, first]


def test_on_instances_that_do_both_cached_blocks_are_work_saved() -> None:
    """The third request finds 16 of its 20 tokens where the first one was; the second is on either."""
    run = cluster("vllm", policy="dynamo", prefill=0, decode=0, shared=2)
    run = replace(run, disaggregation=None, links=(), ingress=replace(run.ingress, cache_delay_ns=0))
    table = requests([0, 900, 1000], [20, 8, 20], [3, 90, 3], shared=[("s", 16), ("", 0), ("s", 16)])
    record = ClusterSimulation(table, run).run()
    check(record)
    first, _, third = record.instance.tolist()
    assert third == first
    assert record.visits.cached_tokens.tolist()[2] == 16


@pytest.mark.parametrize("handoff", ["vllm", "sglang", "trtllm-generation-first"])
def test_a_jump_is_its_steps_and_nothing_is_counted_for_ever(handoff: str) -> None:
    table = requests(list(range(0, 600, 20)), [30, 8, 50] * 10, [9, 40, 2] * 10, [-1, 5, -1, 300, -1] * 6)
    table.deadline_ns[table.deadline_ns >= 0] += table.arrival_ns[table.deadline_ns >= 0]
    runs = [ClusterSimulation(table, cluster(handoff, **DYNAMO), single_step=one) for one in (False, True)]
    jump, single = (run.run() for run in runs)
    check(jump)
    assert jump.visits.instance.tolist() == single.visits.instance.tolist()
    assert jump.finish_ns.tolist() == single.finish_ns.tolist()
    router = runs[0].router
    router._forget_ended(1 << 60)  # type: ignore[attr-defined]
    assert not any(router._blocks)  # type: ignore[attr-defined]
    assert not router._sent  # type: ignore[attr-defined]
