"""Verdicts and what they rest on: what holds, what is lost, and the runs that a statement is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from blis_py.api import configure
from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.metrics.load import SATURATED
from blis_py.planning.analysis import Case, Lever, binding, draws, levers, short
from blis_py.planning.goal import Goal, Judgement, Requirement
from blis_py.planning.job import Job, JobOutcome, Variation
from blis_py.planning.plan import _levers
from blis_py.planning.result import Candidate
from blis_py.planning.stationary import HighestRate, Sustained, highest_rate, next_factors
from blis_py.planning.uncertainty import Draw, Errors

Figures = dict[str, float | None]

FAST = {
    "slo": "ttft.p99=100ms", "slo_class": "", "metric": "ttft", "stat": "p99",
    "limit_ms": 100.0, "measured_ms": 50.0, "met": True,
}  # fmt: skip


def outcome(slo: dict[str, Any] = FAST, verdict: str = "keeps up", **figures: float) -> JobOutcome:
    counted: Figures = {
        f"requests.{name}": float(count) for name, count in {"injected": 100, **figures}.items()
    }
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


@pytest.mark.parametrize(
    ("wanted", "share", "slack"),
    [(0.99, 1.0, 1.0), (0.99, 0.99, 0.0), (0.99, 0.98, -1.0), (1.0, 1.0, 1.0), (1.0, 0.99, -0.01)],
)
@pytest.mark.parametrize("name", ["", "gold"])
def test_the_slack_of_an_attainment_is_what_is_left_of_the_misses_that_it_allows(
    wanted: float, share: float, slack: float, name: str
) -> None:
    figures: Figures = {"requests.injected": 100.0, "goodput.attainment": share}
    judged = Goal(attainment={name: wanted}).judge(JobOutcome(figures, {"gold": {"attainment": share}}))
    assert judged.requirements[0].slack == pytest.approx(slack)
    assert judged.holds == (share >= wanted)
    assert judged.requirements[0].what == ("gold.attainment" if name else "attainment")


def test_an_attainment_of_a_class_that_has_no_requests_is_refused() -> None:
    for name, message in (("gold", "no request of class gold"), ("", "no request has a goodput target")):
        with pytest.raises(InputError, match=message):
            Goal(attainment={name: 0.9}).judge(outcome())


def test_a_figure_has_slack_in_proportion_to_its_lower_limit() -> None:
    rates: Figures = {"throughput.requests_per_s": 12.0, "tpot_ms.mean": 20.0, "requests.injected": 10.0}
    judged = Goal(at_least={"requests_per_s": 10, "tokens_per_s_per_user": 50}).judge(JobOutcome(rates))
    assert [each.slack for each in judged.requirements[:2]] == pytest.approx([0.2, 0.0])
    assert judged.holds
    assert not Goal(at_least={"goodput_per_s": 0.1}).judge(JobOutcome(rates)).holds


def test_a_plan_needs_a_target_and_no_horizon(small: dict[str, Any], config: RunConfig) -> None:
    Goal().check(config)
    bare = configure(**small)
    for goal in (Goal(attainment={"": 0.9}), Goal(at_least={"requests_per_s": 1}), Goal(unlimited=True)):
        goal.check(bare)
    with pytest.raises(InputError, match="no target is given"):
        Goal().check(bare)
    with pytest.raises(InputError, match="would hide the requests"):
        Goal().check(replace(config, horizon=1))


def case(name: str, slack: float) -> Case:
    requirement = Requirement("ttft.p99", 100.0, 100 * (1 - slack), "ms", slack)
    return Case(name, Judgement(slack >= 0, (requirement,)), JobOutcome())


def test_the_gain_of_a_lever_is_by_how_much_the_tightest_target_gets_better() -> None:
    cases = [case("", -0.5), case("KV: more", 0.25), case("host: faster", -0.8), case("compute: faster", 0.0)]
    found = binding([*cases, Case("routing: dies", Judgement(False), JobOutcome())])
    assert [(each.resource, each.how) for each in found] == [
        ("KV", "more"), ("compute", "faster"), ("host", "faster")
    ]  # fmt: skip
    assert [each.gain for each in found] == pytest.approx([0.5, 1 / 3, -0.2])
    assert not binding([Case("", Judgement(False), JobOutcome()), *cases[1:]])
    assert not binding([case("", 1.0), *cases[1:]])


@pytest.mark.parametrize(
    ("gains", "named"),
    [
        ({}, None),
        ({"KV": 0.019}, None),
        ({"KV": 0.02}, "KV"),
        ({"KV": 0.3, "compute": 0.2}, "KV"),
        ({"compute": 0.4, "KV": 0.2}, "KV"),
        ({"compute": 0.4, "KV": 0.19}, "compute"),
        ({"compute": 0.4}, "compute"),
        ({"host": 0.4, "KV": 0.3}, "host"),
    ],
)
def test_a_faster_gpu_is_the_bottleneck_only_where_nothing_else_helps_half_as_much(
    gains: dict[str, float], named: str | None
) -> None:
    lever = short([Lever(name, gain, "") for name, gain in gains.items()])
    assert (None if lever is None else lever.resource) == named


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


@pytest.mark.parametrize(("factor", "rate", "length"), [(2.0, 2.2, 6.6), (0.5, 0.55, 3.0), (None, 1.0, 3.0)])
def test_levers_are_tried_just_above_the_highest_rate_over_the_same_duration(
    config: RunConfig, factor: float | None, rate: float, length: float
) -> None:
    found = replace(outcome(), figures={"kv_blocks": 1001.0})
    best = Candidate({}, 2, config, 2, None, Judgement(True), found)
    above = HighestRate(factor, broken=Judgement(False))
    job = _levers(best, above, 3.0)[""]
    assert (job.variation.rate, job.variation.length) == pytest.approx((rate, length))
    assert job.config.scheduler.num_kv_blocks == 500
    assert not _levers(best, HighestRate(factor), 3.0), "no rate fails"
    assert not _levers(best, None, 3.0)
    assert not _levers(replace(best, outcome=outcome()), above, 3.0), "blocks are not known"
    assert _levers(replace(best, judgement=Judgement(False)), None, 3.0)[""].variation.rate == 1.0


@pytest.mark.parametrize(
    ("low", "high", "tried"),
    [
        (1.0, 2.0, [4 / 3, 5 / 3]),
        (1.0, 1.03, []),
        (2.0, None, [2.5, 3.6]),
        (100.0, None, []),
        (None, 2.0, [1.0, 1.6]),
        (None, 0.01, []),
    ],
)
def test_two_rates_are_tried_at_a_time(low: float | None, high: float | None, tried: list[float]) -> None:
    assert next_factors(low, high) == pytest.approx(tried)
