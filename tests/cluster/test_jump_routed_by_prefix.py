"""A jump is its steps where the router reads prefix caches of instances that are short of blocks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from cluster_runs import Row, Run, differences
from routed_runs import routed, routed_on_ranks

from blis_py.core.config import SchedulerConfig
from blis_py.metrics.invariants import check


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("random_run", [routed, routed_on_ranks])
def test_requests_go_to_the_same_instances_whether_steps_are_skipped_or_not(
    random_run: Callable[[Random], Run], part: int
) -> None:
    hits = preempted = 0
    for seed in range(part, 160, 8):
        run = random_run(Random(seed))
        record = run.record()
        check(record)
        assert differences(record, run.record(single_step=True)) == [], f"seed {seed}"
        hits += bool((record.cached_tokens > 0).any())
        preempted += bool(record.preemptions.any())
    assert hits > 15
    assert preempted > 5


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("queued", [False, True])
def test_a_router_reads_the_blocks_that_the_planned_step_overwrites(
    async_scheduling: bool, queued: bool
) -> None:
    """A decode takes the last free block, which held a prefix: gone as soon as the step is planned."""
    config = SchedulerConfig(
        num_kv_blocks=6, block_size=4, max_model_len=24, max_num_seqs=1, async_scheduling=async_scheduling
    )
    rows = [
        Row(0, 4, 1, 1, runs=(("prefix", 4),)),
        Row(20, 16, 8, 8),
        *([Row(21, 4, 1, 1)] if queued else []),
        *(Row(at, 5, 1, 1, runs=(("prefix", 4),)) for at in range(60, 130, 10)),
    ]
    options = {
        "num_instances": 2,
        "routing_policy": "weighted",
        "routing_scorers": {"precise-prefix-cache": 1.0},
        "snapshot_refresh_ns": 0,
        "cache_delay_ns": 0,
    }
    run = Run(rows, config, options=options)
    assert differences(run.record(), run.record(single_step=True)) == []


@pytest.mark.parametrize("seed", [10031, 10605, 11034, 11073])
def test_a_horizon_behind_a_look_at_the_cache_leaves_the_same_books(seed: int) -> None:
    """The router has seen blocks reserved for the step that is planned behind the one in flight."""
    run = routed(Random(seed))
    assert run.options["horizon_ns"] is not None
    assert differences(run.record(), run.record(single_step=True)) == []


@pytest.mark.parametrize("seed", [6, 7, 40])
def test_a_router_reads_what_any_rank_holds_and_blocks_until_requests_in_flight_have_ended(seed: int) -> None:
    """Two ranks hold the same blocks, and one drops them; a rank is idle behind a step that ends its last
    request."""
    run = routed_on_ranks(Random(seed))
    assert differences(run.record(), run.record(single_step=True)) == []
