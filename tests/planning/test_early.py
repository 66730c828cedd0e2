"""What the first part of the arrivals says is true of the whole, or is looked at again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import blis_py as blis
from blis_py.api import configure
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.metrics.slo import SloCheck
from blis_py.planning import worker
from blis_py.planning.early_stop import _easy, horizon_ns, judge, percent_of, worth_it
from blis_py.planning.goal import Goal
from blis_py.planning.job import FINE, HOPELESS, Job, JobOutcome
from blis_py.requests.table import Labels, RequestTable

GOAL = Goal()
LOAD: dict[str, Any] = {"model": "llama-3.1-8b", "num_requests": 1200, "output_tokens": 64}


def outcome(job: Job) -> JobOutcome:
    return worker.run(worker.pack(job, None))


@pytest.mark.slow
@pytest.mark.parametrize(
    "slo", ["ttft.p99=100ms", "ttft.p95=60ms", "ttft.mean=9ms", "scheduling_delay.max=90ms"]
)
def test_what_is_hopeless_misses_its_target_in_the_whole_run(slo: str) -> None:
    found = []
    for rate in (40, 80, 160, 320):
        job = Job(configure(**LOAD, rate=rate, slo=slo), stops_at=(HOPELESS, FINE))
        early = outcome(job).early_stop
        whole = GOAL.judge(outcome(replace(job, stops_at=())))
        found.append(early)
        if early == HOPELESS:
            assert not whole.holds
    assert HOPELESS in found


@pytest.mark.slow
def test_a_part_that_is_easy_reports_it_and_the_whole_is_only_then_left_out() -> None:
    easy = Job(configure(**LOAD, rate=10, num_instances=4, slo="ttft.p99=5s tpot.p99=1s"), stops_at=(FINE,))
    assert outcome(easy).early_stop == FINE
    assert outcome(replace(easy, stops_at=(HOPELESS,))).figures == outcome(replace(easy, stops_at=())).figures
    tight = replace(easy, config=configure(**LOAD, rate=10, num_instances=4, slo="ttft.p99=30ms"))
    assert outcome(tight).early_stop is None


@pytest.mark.parametrize("setting", [{"concurrency": 8}, {"horizon": "20s"}, {"num_requests": 100}])
def test_runs_that_have_no_first_part_are_run_whole(setting: dict[str, Any]) -> None:
    config = configure(**{**LOAD, "rate": 300, "slo": "ttft.max=1ms"} | setting)
    assert outcome(Job(config, stops_at=(HOPELESS, FINE))).early_stop is None


def test_requests_that_may_be_lost_do_not_make_it_hopeless() -> None:
    config = configure(**LOAD, rate=100, slo="ttft.max=60ms")
    job = Job(config, stops_at=(HOPELESS,))
    assert outcome(job).early_stop == HOPELESS
    assert outcome(replace(job, max_lost=0.5)).early_stop is None


@pytest.fixture
def part() -> RunRecord:
    """A run of 60 requests, of which 12 are of class gold, that has memory to spare."""
    run = blis.run(model="llama-3.1-8b", num_requests=60, rate=20, prompt_tokens=100, output_tokens=8, seed=3)
    names = np.array(["gold" if row % 5 == 0 else "" for row in range(60)])
    return replace(run.record, table=replace(run.record.table, slo_class=Labels.of(names.tolist())))


def worst_ns(part: RunRecord) -> float:
    return float((part.first_token_ns - part.table.arrival_ns).max())


def verdict(part: RunRecord, limit_ns: float, stat: str = "p99", metric: str = "ttft") -> str | None:
    return judge(part, part.table, [SloCheck("", metric, stat, limit_ns)])


def test_it_is_easy_where_every_request_is_twice_as_fast_as_it_must_be(part: RunRecord) -> None:
    assert verdict(part, 2 * worst_ns(part)) == FINE
    assert verdict(part, 1.99 * worst_ns(part)) is None
    assert verdict(part, 2 * worst_ns(part), "min") is None
    mean = float((part.first_token_ns - part.table.arrival_ns).mean())
    assert verdict(part, 2.01 * mean, "mean") == FINE
    assert verdict(part, 1.99 * mean, "mean") is None
    assert verdict(part, 1e12, metric="itl") is None


def test_it_is_not_easy_where_memory_is_half_full(part: RunRecord) -> None:
    (instance,) = part.instances
    for blocks, easy in ((50, FINE), (51, None)):
        instance.num_kv_blocks, instance.peak_kv_blocks = 100, blocks
        assert verdict(part, 1e12) == easy


@pytest.mark.parametrize(("ended", "easy"), [(50, FINE), (49, None)])
def test_fifty_answers_are_needed_to_call_it_easy(part: RunRecord, ended: int, easy: str | None) -> None:
    part.visits.outcome[ended:] = Outcome.RUNNING
    assert verdict(part, 1e12) == easy


@pytest.mark.parametrize("how", [Outcome.UNSERVABLE, Outcome.TIMED_OUT, Outcome.REJECTED, Outcome.EVICTED])
def test_it_is_not_easy_where_a_request_is_lost(part: RunRecord, how: Outcome) -> None:
    part.visits.outcome[7] = how
    assert verdict(part, 1e12) is None


def slow_down(part: RunRecord, rows: slice) -> None:
    part.visits.first_token_ns[rows] = part.table.arrival_ns[rows] + 10**10


@pytest.mark.parametrize(
    ("stat", "slow"), [("max", 1), ("p99", 2), ("p98", 3), ("p90", 7), ("median", 31), ("p50", 31)]
)
def test_a_percentile_is_hopeless_once_it_lies_among_the_slow_ones(
    part: RunRecord, stat: str, slow: int
) -> None:
    """p99 of 60 lies between the two slowest, and is certain only if both are slow."""
    slow_down(part, slice(0, slow))
    assert verdict(part, 10**10 - 1, stat) == HOPELESS
    assert verdict(part, 10**10, stat) != HOPELESS
    part.visits.first_token_ns[slow - 1] = part.table.arrival_ns[slow - 1]
    assert verdict(part, 10**10 - 1, stat) != HOPELESS


def test_a_mean_is_hopeless_once_the_sum_behind_it_is_reached(part: RunRecord) -> None:
    part.visits.first_token_ns[:] = part.table.arrival_ns
    slow_down(part, slice(0, 6))
    assert verdict(part, 10**9 - 1, "mean") == HOPELESS
    assert verdict(part, 10**9, "mean") is None


def test_a_queued_request_has_waited_up_to_now(part: RunRecord) -> None:
    part.visits.first_token_ns[0] = -1
    waited_ns = part.end_ns - int(part.table.arrival_ns[0])
    assert verdict(part, waited_ns - 1, "max") == HOPELESS
    assert verdict(part, waited_ns, "max") != HOPELESS


def test_requests_that_may_be_lost_count_for_no_limit(part: RunRecord) -> None:
    slow_down(part, slice(0, 3))
    checks = [SloCheck("", "ttft", "max", 10**10 - 1)]
    assert judge(part, part.table, checks, 1.9 / 60) == judge(part, part.table, checks) == HOPELESS
    assert judge(part, part.table, checks, 2 / 60) is None
    assert judge(part, part.table, [SloCheck("", "ttft", "mean", 1.0)], 1 / 60) is None


def test_a_limit_of_a_class_is_judged_by_its_requests(part: RunRecord) -> None:
    slow_down(part, slice(1, 5))  # none of them gold
    for name, report in (("gold", None), ("standard", HOPELESS), ("silver", None)):
        assert judge(part, part.table, [SloCheck("", "ttft", "p95", 10**9, name)]) == report


@pytest.mark.parametrize(("gold", "easy"), [(50, FINE), (49, None)])
def test_fifty_answers_of_a_class_are_needed_to_call_its_limit_easy(
    part: RunRecord, gold: int, easy: str | None
) -> None:
    names = Labels.of(["gold" if row < gold else "" for row in range(60)])
    some = replace(part, table=replace(part.table, slo_class=names))
    assert judge(some, some.table, [SloCheck("", "ttft", "p99", 1e12, "gold")]) == easy


def test_answers_that_end_at_the_longest_length_are_answers(part: RunRecord) -> None:
    part.visits.outcome[:] = Outcome.LENGTH_CAPPED
    assert verdict(part, 1e12) == FINE


def test_the_first_part_is_an_eighth_of_the_arrivals() -> None:
    arrival_ns = np.array([5, 100, 805])
    table = RequestTable.build(arrival_ns, arrival_ns, arrival_ns)
    assert horizon_ns(table) == 105
    assert horizon_ns(table.take(np.array([0]))) == 6
    many = table.take(np.zeros(400, dtype=np.int64))
    check = SloCheck("", "ttft", "p99", 1.0)
    assert worth_it(many, [check])
    assert not worth_it(many, [])
    assert not worth_it(many.take(np.arange(399)), [check])


def first_part(outcomes: list[Outcome], used: Sequence[float]) -> Any:
    instances = [SimpleNamespace(peak_kv_blocks=share * 100, num_kv_blocks=100) for share in used]
    return SimpleNamespace(outcome=np.array(outcomes, dtype=np.int8), instances=instances)


@pytest.mark.parametrize(
    ("ended", "other", "used", "easy"),
    [
        (50, Outcome.RUNNING, [0.5, 0.1], True),
        (49, Outcome.RUNNING, [0.5, 0.1], False),
        (50, Outcome.RUNNING, [0.1, 0.51], False),
        (50, Outcome.RUNNING, [0.51, 0.1], False),
        (50, Outcome.RUNNING, [], False),
        (50, Outcome.EVICTED, [0.1], False),
        (50, Outcome.UNSERVABLE, [0.1], False),
    ],
)
def test_a_first_part_is_easy_where_no_instance_is_half_full(
    ended: int, other: Outcome, used: list[float], easy: bool
) -> None:
    columns: Any = None
    outcomes = [Outcome.COMPLETED] * (ended - 1) + [Outcome.LENGTH_CAPPED, other]
    assert _easy([], first_part(outcomes, used), columns) == easy


def test_the_first_part_is_worthwhile_from_four_hundred_requests_on() -> None:
    def load(rows: int, step_ns: int = 8) -> RequestTable:
        return RequestTable.build(np.arange(rows) * step_ns + 3, np.ones(rows, int), np.ones(rows, int))

    check: Any = object()
    assert [worth_it(load(rows), [check]) for rows in (399, 400)] == [False, True]
    assert not worth_it(load(400), [])
    assert (horizon_ns(load(11)), horizon_ns(load(3, 0))) == (3 + 10, 3 + 1)
    stats = ("mean", "std", "median", "max", "p99", "p99.9", "min")
    assert [percent_of(stat) for stat in stats] == [None, None, 50.0, 100.0, 99.0, 99.9, None]
