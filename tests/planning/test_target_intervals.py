"""How far the figures of one run are those of its load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from record_builders import instance, record, table

from blis_py.api import build, configure
from blis_py.metrics.slo import parse_slo, parse_slos
from blis_py.planning.api import study_of
from blis_py.planning.goal import Goal
from blis_py.planning.intervals import _of_mean, _of_percentile, dispersion, intervals, undecided
from blis_py.planning.job import Job, JobOutcome
from blis_py.planning.plan import plan
from blis_py.planning.prices import Prices
from blis_py.planning.stationary import highest_rate, sustained
from blis_py.planning.steady import is_enough

SLO = "ttft.p99=100ms"


def autocorrelated(rng: np.random.Generator, count: int) -> Any:
    """Values that remember the previous ten or so."""
    noise = rng.normal(size=count)
    values = np.empty(count)
    last = 0.0
    for i, each in enumerate(noise):
        values[i] = last = 0.9 * last + each
    return values


@pytest.mark.parametrize(("of", "truth"), [(_of_mean, 0.0), (lambda v: _of_percentile(v, 0.9), 2.94)])
def test_intervals_of_correlated_values_hold_the_truth(of: Any, truth: float) -> None:
    """The 90th percentile of this process is 1.2816 / sqrt(1 - 0.81)."""
    rng = np.random.default_rng(3)
    found = [of(autocorrelated(rng, 6000)) for _ in range(40)]
    assert np.mean([low <= truth <= high for low, high in found]) >= 0.95
    assert np.mean([high - low for low, high in found]) < 2.5


def test_a_percentile_beyond_the_sample_has_no_upper_end() -> None:
    low, high = _of_percentile(np.random.default_rng(0).exponential(size=1000), 0.999)
    assert high is None
    assert low is None or low > 3


def test_the_intervals_of_a_run_hold_its_figures_and_leave_out_extremes_and_gaps() -> None:
    slo = [SLO, "tpot.mean=20ms", "ttft.max=1s", "itl.p99=50ms"]
    result = build(model="llama-3.1-8b", num_requests=200, rate=20, output_tokens=20, slo=slo).run(
        progress=False
    )
    found = intervals(result.record, parse_slos(slo))
    assert set(found) == {SLO, "tpot.mean=20ms"}
    for each in result.summary["slo"]:
        if each["slo"] in found:
            low, high = found[each["slo"]]
            assert low is None or low <= each["measured_ms"]
            assert high is None or each["measured_ms"] <= high
    assert intervals(result.record, []) == {}


def test_the_dispersion_of_arrivals_is_one_of_poisson_and_that_of_gaps_of_gamma() -> None:
    rng = np.random.default_rng(0)
    poisson = np.cumsum(rng.exponential(1e6, 20_000)).astype(np.int64)
    gamma = np.cumsum(rng.gamma(1 / 9, 9e6, 20_000)).astype(np.int64)
    assert dispersion(poisson) == pytest.approx(1, rel=0.5)
    assert dispersion(gamma) == pytest.approx(9, rel=0.6)
    assert dispersion(np.zeros(100, dtype=np.int64)) == 1.0


def test_bursts_of_generated_arrivals_ask_for_more_requests() -> None:
    facts = {"generated": True, "requests": 4000, "dispersion": 9.0}
    assert is_enough(JobOutcome(facts=facts))
    assert not is_enough(JobOutcome(facts=facts | {"dispersion": 90.0}))
    assert is_enough(JobOutcome(facts=facts | {"dispersion": 90.0, "generated": False}))


class Sampled:
    """A runner of made-up outcomes: the p99 TTFT is the rate's, with an error that lengths decrease."""

    done = reused = 0

    def __init__(self, at_rate_one_ms: float, luck: float = 0.0) -> None:
        self.at_rate_one_ms, self.luck = at_rate_one_ms, luck
        self.requests: list[int] = []

    def outcome(self, rate: float, length: float) -> JobOutcome:
        requests = round(100 * length)
        error = 4 * requests**-0.5
        truth = self.at_rate_one_ms * rate
        measured, ends = truth * (1 + self.luck * error), (truth * (1 - error), truth * (1 + error))
        slo = [
            {"slo": SLO, "slo_class": None, "metric": "ttft", "stat": "p99", "limit_ms": 100.0,
             "measured_ms": measured, "met": measured <= 100}
        ]  # fmt: skip
        facts = {"requests": requests, "generated": True, "intervals": {SLO: ends}, "offered_per_s": rate}
        return JobOutcome({"requests.injected": requests}, slo=slo, verdict="stable", facts=facts)

    def run(self, jobs: Sequence[Job], on_outcome: Any = None) -> list[JobOutcome]:
        self.requests += [round(100 * job.variation.length) for job in jobs]
        outcomes = [self.outcome(job.variation.rate, job.variation.length) for job in jobs]
        for index, outcome in enumerate(outcomes if on_outcome is not None else ()):
            on_outcome(index, outcome, False)
        return outcomes


CONFIG = configure(model="llama-3.1-8b", num_requests=100, rate=1, slo=SLO)


def longest(runner: Sampled, **changes: Any) -> Any:
    first = runner.outcome(1.0, 20.0)
    first = replace(first, facts=first.facts | changes)
    return sustained(CONFIG, Goal(), runner, first, 20.0)  # type: ignore[arg-type]


def test_a_target_is_judged_by_a_run_whose_error_does_not_reach_it() -> None:
    clear, near, nearer = (longest(Sampled(at)) for at in (80, 96, 99.5))
    assert [each.requests for each in (clear, near, nearer)] == [8000, 32_000, 50_000]
    assert [each.on_edge for each in (clear, near, nearer)] == [False, False, True]


def test_a_target_that_few_requests_miss_by_chance_is_judged_by_more() -> None:
    found = longest(Sampled(96, luck=0.9))
    assert found.judgement.holds
    assert not longest(Sampled(104, luck=-0.9)).judgement.holds


def test_a_recorded_load_is_no_sample() -> None:
    assert not longest(Sampled(99.5), generated=False, requests=8000).on_edge


def test_the_bounds_of_a_highest_rate_are_certain() -> None:
    """100 ms are reached at a rate of 1.25."""
    runner = Sampled(80, luck=0.5)
    found = highest_rate(CONFIG, Goal(), runner, longest(runner))  # type: ignore[arg-type]
    assert found.bounds is not None
    least, most, requests = found.bounds
    assert least is not None
    assert most is not None
    assert least < 1.25 < most < 1.3 * least
    assert found.settled == (most < 1.11 * least)
    assert requests <= 50_000 >= max(runner.requests)


def test_no_rate_is_called_held_that_only_shorter_runs_hold() -> None:
    """The start misses its target over 50,000 requests, and would meet it over 10,000."""
    runner = Sampled(103, luck=-0.9)
    assert not longest(runner).judgement.holds
    found = highest_rate(CONFIG, Goal(), runner, longest(runner))  # type: ignore[arg-type]
    assert found.factor is not None
    assert 0.94 < found.factor < 1


class WithEnds(Sampled):
    """As long as 100 more requests until the last of them has ended."""

    def outcome(self, rate: float, length: float) -> JobOutcome:
        found = super().outcome(rate, length)
        per_s = rate / (1 + 100 / found.facts["requests"])
        return replace(found, figures=found.figures | {"throughput.requests_per_s": per_s})


def test_a_throughput_that_only_a_longer_run_reaches_does_not_leave_a_cluster_without_a_rate() -> None:
    runner, goal = WithEnds(80), Goal(at_least={"requests_per_s": 0.993})
    start = sustained(CONFIG, goal, runner, runner.outcome(1.0, 320.0), 320.0)  # type: ignore[arg-type]
    assert start.judgement.holds
    found = highest_rate(CONFIG, goal, runner, start)  # type: ignore[arg-type]
    assert found.factor == pytest.approx(1.25, rel=0.03)


def planned(runner: Sampled) -> Any:
    study = study_of(
        None, {"model": "llama-3.1-8b", "num_requests": 100, "rate": 1, "slo": SLO, "gpu": "h100"}
    )
    prices = Prices({"h100": 3.0})
    return plan(study, [], runner, goal=Goal(), prices=prices, sizes=[1], draws=0, knobs=False)  # type: ignore[arg-type]


def test_candidates_that_miss_a_target_by_chance_are_searched_again_over_more_requests() -> None:
    """2,000 requests miss 100 ms with 104 ms, 8,000 and more meet it."""
    found = planned(Sampled(96, luck=0.9))
    assert found.holds
    assert found.sustained.begun > 20
    assert found.sustained.requests > 8000


def test_where_nothing_holds_the_answer_is_that_of_the_longest_run() -> None:
    found = planned(Sampled(103, luck=-0.9))
    assert not found.holds
    assert found.best.outcome.facts["requests"] == found.config.workload.num_requests > 30_000
    assert found.best.judgement.tightest.measured == pytest.approx(101, abs=1)
    assert found.rate.factor < 1


def test_a_rate_is_not_bounded_by_runs_beyond_the_longest_allowed() -> None:
    runner, goal = Sampled(80), Goal(most_requests=2000, most_extended=2000)
    start = sustained(CONFIG, goal, runner, runner.outcome(1.0, 20.0), 20.0)  # type: ignore[arg-type]
    found = highest_rate(CONFIG, goal, runner, start)  # type: ignore[arg-type]
    assert max(runner.requests) == 2000
    assert not found.settled
    assert found.bounds is not None


def test_only_what_lies_within_its_interval_is_undecided() -> None:
    at = Sampled(99).outcome(1.0, 20.0)
    assert [text for text, _ in undecided(at)] == [SLO]
    assert undecided(replace(at, facts={**at.facts, "intervals": {}})) == []


def test_an_interval_is_that_of_the_widest_blocks() -> None:
    """Values that alternate in halves of the run: of 40, 20 and 10 blocks all sums are equal in size."""
    values = np.array([1.0] * 40 + [3.0] * 40)
    half = 3.250 * (10 / 9 * 10 * 8**2) ** 0.5 / 80
    assert _of_mean(values) == pytest.approx((2 - half, 2 + half))


def test_the_ends_of_a_percentile_are_percentiles() -> None:
    values = (np.arange(4000) * 1237 % 4000).astype(np.float64)
    low, high = _of_percentile(values, 0.5)
    assert low is not None
    assert high is not None
    assert low < 1999.5 < high
    assert _of_percentile(np.zeros(80), 0.5) == (0.0, 0.0)  # nothing scatters


@pytest.mark.parametrize(("requests", "known"), [(39, False), (40, True)])
def test_an_interval_needs_a_request_in_each_block(requests: int, known: bool) -> None:
    arrivals = np.arange(requests) * 10**9
    run = record(table(arrivals), [instance(arrivals + 10**6)], [(0, [row]) for row in range(requests)])
    run.visits.first_token_ns[:] = arrivals + 5 * 10**6
    checks = [parse_slo(text) for text in ("ttft.mean=10ms", "ttft.max=10ms", "itl.p50=10ms", "ttft.p50=9ms")]
    found = intervals(run, checks)
    assert set(found) == ({"ttft.mean=10ms", "ttft.p50=9ms"} if known else set())
    if known:
        assert found["ttft.mean=10ms"] == pytest.approx((5.0, 5.0))
    assert intervals(run, []) == {}


@pytest.mark.parametrize(
    ("arrivals", "spread"),
    [
        (np.arange(39), 1.0),
        (np.zeros(40), 1.0),
        (np.arange(40), 0.0),
        (np.array([0] * 41 + [80]), np.var([41, *[0] * 38, 1], ddof=1) / (42 / 40)),
    ],
)
def test_the_dispersion_is_the_variance_over_the_mean_of_forty_windows(arrivals: Any, spread: float) -> None:
    assert dispersion(arrivals.astype(np.int64)) == pytest.approx(spread)
