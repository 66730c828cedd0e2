"""Ranks that step together: each has a queue and KV blocks of its own, and a jump is its steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cluster_runs import Row, Run, differences, linear, on_ranks, runs, table_of
from hypothesis import given, settings
from hypothesis import strategies as st
from one_pool import simulate

from blis_py.cluster.ingress.closed_loop import ClosedLoop
from blis_py.cluster.instances import autoregressive_kind
from blis_py.core.config import SchedulerConfig
from blis_py.core.counters import Counters
from blis_py.core.rank_choice import RANK_CHOICES, RankLoad
from blis_py.core.ranks import RankedScheduler
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler
from blis_py.errors import InputError
from blis_py.metrics.invariants import check


@st.composite
def ranked_runs(draw: st.DrawFn) -> Run:
    run = draw(runs())
    choice = draw(st.sampled_from(sorted(RANK_CHOICES)))
    more = {"rank_choice": choice}
    if draw(st.booleans()):
        steps = draw(st.sampled_from([0, 3, 50]))
        more |= {"batch_former": "in-flight", "rank_balance_steps": steps}
    return replace(run, config=on_ranks(run.config, draw(st.integers(2, 4)), **more))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(ranked_runs())
def test_a_jump_of_ranks_equals_its_steps(run: Run) -> None:
    record = run.record()
    assert differences(record, run.record(single_step=True)) == []
    check(record)


@pytest.mark.slow
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


def test_requests_stay_on_the_rank_they_were_given() -> None:
    """In turn, each rank computes one of two prompts; a third waits for its own rank's slot, not for any."""
    config = SchedulerConfig(
        num_kv_blocks=100, max_model_len=1000, max_num_seqs=2, ranks=2, rank_choice="round-robin"
    )
    rows = [Row(0, 4, 40, 40), Row(0, 4, 4, 4), Row(0, 4, 4, 4), Row(0, 4, 4, 4)]
    record = Run(rows, config).record()
    scheduled = record.scheduled_ns.tolist()
    assert scheduled[0] == scheduled[1] == 0
    assert scheduled[3] == 4 * 10_000, "behind the second, on the second rank"
    assert scheduled[2] == 40 * 10_000, "behind the first, though the other rank is free"


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("permits", [2, 3, 7])
def test_clients_of_a_closed_loop_go_on_at_the_end_of_a_request_whichever_rank_is_idle(
    permits: int, async_scheduling: bool
) -> None:
    config = SchedulerConfig(
        num_kv_blocks=900, max_model_len=1000, ranks=3, async_scheduling=async_scheduling
    )
    rows = [Row(0, 4 + 7 * n % 50, 1 + 11 * n % 17, 1 + 11 * n % 17) for n in range(60)]
    record = simulate(ClosedLoop(table_of(rows), permits), scheduler=config, latency=linear(10_000))
    sent = np.sort(record.table.arrival_ns)[permits:]
    assert sent.tolist() == np.sort(record.finish_ns)[: len(sent)].tolist()


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [("round-robin", 1), ("least-queued", 2), ("total-tokens", 0), ("balanced-tokens", 0)],
)
def test_a_policy_chooses_by_what_it_sees(choice: str, chosen: int) -> None:
    loads = [load(1, 1, 10), load(0, 3, 500), load(0, 2, 90)]
    request = Request("new", 0, 8, 8, 8)
    assert RANK_CHOICES[choice](loads, request, 1) == chosen


def with_row(row: int) -> Request:
    request = Request(f"r{row}", 0, 8, 8, 8)
    request.row = row
    return request


def load(waiting: int, running: int, prompt_tokens: int) -> RankLoad:
    found = RankLoad()
    found.waiting, found.running, found.prompt_tokens = waiting, running, prompt_tokens
    return found


def test_ranks_by_bootstrap_rooms_are_random_and_the_same_in_every_run() -> None:
    choose, loads = RANK_CHOICES["follow-bootstrap-room"], [RankLoad() for _ in range(8)]
    rooms = [choose(loads, with_row(row), 4000 - row) for row in range(4000)]
    assert rooms == [choose(loads, with_row(row), 0) for row in range(4000)], "by the request alone"
    shares = np.bincount(rooms, minlength=8) / 4000
    assert shares == pytest.approx(np.full(8, 1 / 8), rel=0.15)
    in_a_row = np.mean(np.diff(rooms) == 0)
    assert in_a_row == pytest.approx(1 / 8, rel=0.2), "not in turn"


def test_prompts_wait_until_every_rank_has_one() -> None:
    config = SchedulerConfig(
        num_kv_blocks=100, max_model_len=1000, max_num_seqs=8, ranks=2, rank_choice="round-robin"
    )
    rows = [Row(0, 4, 90, 90), Row(0, 4, 90, 90), Row(15, 4, 4, 4), Row(155, 4, 4, 4), Row(305, 4, 4, 4)]

    def scheduled(steps: int) -> list[int]:
        balanced = replace(config, batch_former="in-flight", rank_balance_steps=steps)
        return (Run(rows, balanced).record().scheduled_ns // 10_000).tolist()

    assert scheduled(0) == [0, 0, 2, 16, 31]
    assert scheduled(50) == [0, 0, 16, 16, 81], "until the other rank has one; the last for as long as it may"


def test_a_group_needs_something_for_every_rank() -> None:
    config = SchedulerConfig(num_kv_blocks=3, max_model_len=1000, ranks=4)
    with pytest.raises(InputError, match="num_kv_blocks: leaves nothing for each of 4 ranks"):
        Run([Row(0, 4, 4, 4)], config).record()
