"""Verdicts and what they rest on: what holds, what is lost, and the runs that a statement is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from blis_py.api import configure
from blis_py.config.models import RunConfig
from blis_py.metrics.load import SATURATED
from blis_py.planning.analysis import draws, levers
from blis_py.planning.goal import Goal
from blis_py.planning.job import Job, JobOutcome, Variation
from blis_py.planning.stationary import Sustained, highest_rate
from blis_py.planning.uncertainty import Draw, Errors

FAST = {
    "slo": "ttft.p99=100ms", "slo_class": "", "metric": "ttft", "stat": "p99",
    "limit_ms": 100.0, "measured_ms": 50.0, "met": True,
}  # fmt: skip


def outcome(slo: dict[str, Any] = FAST, verdict: str = "keeps up", **figures: float) -> JobOutcome:
    counted = {f"requests.{name}": float(count) for name, count in {"injected": 100, **figures}.items()}
    return JobOutcome(figures=counted, slo=[slo], verdict=verdict)


@pytest.fixture
def config(small: dict[str, Any]) -> RunConfig:
    return configure(**small, slo="ttft.p99=100ms")


def test_a_saturated_cluster_does_not_hold_though_it_meets_every_target() -> None:
    assert Goal().judge(outcome()).holds
    judged = Goal().judge(outcome(verdict=SATURATED))
    assert all(each.met for each in judged.requirements)
    assert not judged.holds
    assert str(judged) == "the backlog grows"


@pytest.mark.parametrize("how", ["rejected", "unservable", "timed_out", "evicted"])
def test_a_request_without_an_answer_is_lost_whatever_became_of_it(how: str) -> None:
    assert not Goal().judge(outcome(**{how: 1})).holds
    assert Goal(max_lost=0.01).judge(outcome(**{how: 1})).holds
    assert not Goal(max_lost=0.01).judge(outcome(**{how: 2})).holds


def test_requests_lost_in_several_ways_add_up() -> None:
    judged = Goal(max_lost=0.035).judge(outcome(rejected=1, unservable=1, timed_out=1, evicted=1))
    assert not judged.holds
    assert judged.tightest is not None
    assert judged.tightest.measured == pytest.approx(0.04)


def test_every_draw_has_requests_and_step_times_of_its_own(config: RunConfig) -> None:
    steps = [0.9 + index / 40 for index in range(8)]
    jobs = list(draws(config, Errors(tuple(map(Draw, steps)), "assumed", 8), Goal(), 1.0).values())
    assert len({job.config.seed for job in jobs}) == 8
    assert [job.variation.gpu_time for job in jobs] == steps
    assert [job.variation.host_time for job in jobs] == steps


class UpTo:
    """A runner of clusters that meet their target up to a factor on the rate."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def run(self, jobs: Sequence[Job]) -> list[JobOutcome]:
        missed = {**FAST, "measured_ms": 200.0, "met": False}
        return [outcome(FAST if job.variation.rate <= self._factor else missed) for job in jobs]


@pytest.mark.parametrize("truth", [0.0123, 0.37, 0.99, 1.01, 1.9, 7.7, 90.0])
def test_the_highest_rate_is_found_to_three_per_cent_and_not_above_the_truth(
    config: RunConfig, truth: float
) -> None:
    runner: Any = UpTo(truth)
    (first,) = runner.run([Job(config)])
    found = highest_rate(config, Goal(), runner, Sustained(Goal().judge(first), first, 1.0, True))
    assert found.factor is not None
    assert truth / 1.03 <= found.factor <= truth
    assert found.broken is not None
    assert not found.broken.holds


def test_every_lever_keeps_the_kv_of_the_configuration_that_fails(config: RunConfig) -> None:
    """Memory follows from the token budget, among others: of a lever only one thing is moved."""
    assert config.scheduler.num_kv_blocks != 777
    jobs = levers(config, Variation(rate=1.5), 777)
    assert len(jobs) >= 6
    assert {job.config.scheduler.num_kv_blocks for job in jobs.values()} == {777}
    assert {name: job.variation.kv_blocks for name, job in jobs.items() if job.variation.kv_blocks != 1} == {
        "KV: 25 % more KV blocks": 1.25
    }
