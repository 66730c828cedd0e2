"""Ranks that step together: each has a queue and KV blocks of its own, and a jump is its steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster_runs import Run, differences, runs
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_py.cluster import autoregressive_kind
from blis_py.core.config import SchedulerConfig
from blis_py.core.counters import Counters
from blis_py.core.rank_choice import RANK_CHOICES
from blis_py.core.ranks import RankedScheduler
from blis_py.core.scheduler import Scheduler
from blis_py.metrics.invariants import check


def on_ranks(config: SchedulerConfig, ranks: int, **more: Any) -> SchedulerConfig:
    """That many ranks, each with the limits of the configuration."""
    limits = ("num_kv_blocks", "max_num_seqs", "max_num_batched_tokens")
    whole = {name: ranks * getattr(config, name) for name in limits}
    return replace(config, ranks=ranks, **whole, **more)


@st.composite
def ranked_runs(draw: st.DrawFn) -> Run:
    run = draw(runs())
    choice = draw(st.sampled_from(sorted(RANK_CHOICES)))
    more = {"rank_choice": choice}
    if draw(st.booleans()):
        steps = draw(st.sampled_from([0, 3, 50]))
        more |= {"batch_former": "in-flight", "rank_balance_steps": steps}
    return replace(run, config=on_ranks(run.config, draw(st.integers(2, 4)), **more))


@settings(max_examples=60, deadline=None)
@given(ranked_runs())
def test_a_jump_of_ranks_equals_its_steps(run: Run) -> None:
    record = run.record()
    assert differences(record, run.record(single_step=True)) == []
    check(record)


@settings(max_examples=60, deadline=None)
@given(runs())
def test_a_group_of_one_rank_is_a_scheduler(run: Run) -> None:
    alone = run.record(record_steps=True)

    def group(config: SchedulerConfig, *options: Any) -> RankedScheduler:
        counters = Counters()
        return RankedScheduler(config, [Scheduler(config, *options, counters)], counters, options[1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoregressive_kind, "scheduler_of", group)
        assert differences(alone, run.record(record_steps=True)) == []
