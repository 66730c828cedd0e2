"""Judgements over longer runs, rates and their bounds, on servers whose behaviour is a formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from record_builders import instance, record, table

from blis_py.api import configure
from blis_py.metrics.load import SATURATED, TOO_SHORT
from blis_py.metrics.slo import parse_slo
from blis_py.planning import stationary
from blis_py.planning.analysis import draws, levers
from blis_py.planning.goal import Goal, Judgement, Requirement
from blis_py.planning.intervals import _of_mean, _of_percentile, dispersion, intervals, undecided
from blis_py.planning.job import FINE, HOPELESS, Job, JobOutcome, Variation
from blis_py.planning.stationary import (
    HighestRate,
    RateBounds,
    Sustained,
    _alike,
    _RateSearch,
    _same,
    highest_rate,
    next_factors,
    on_edge,
    sustained,
)
from blis_py.planning.steady import is_enough, is_steady, requests_needed, steady_length
from blis_py.planning.uncertainty import Draw, Errors

GOAL = Goal(most_requests=6400, most_extended=10_000)
CONFIG = configure(model="llama-3.1-8b", num_requests=10)


def target(measured: float | None, limit: float = 100.0, slo: str = "ttft.p99=100ms") -> dict[str, Any]:
    return {
        **{"slo": slo, "slo_class": None, "metric": "ttft", "stat": "p99"},
        **{"limit_ms": limit, "measured_ms": measured, "met": measured is not None and measured <= limit},
    }


def outcome(requests: float, measured: float | None = 50.0, verdict: str = "", **facts: Any) -> JobOutcome:
    facts = {"requests": int(requests), "offered_per_s": 5.0, "span_s": 7.0, **facts}
    return JobOutcome({"requests.injected": 1.0}, slo=[target(measured)], verdict=verdict, facts=facts)


class Server:
    """A runner of jobs by a function of the rate and of the number of requests."""

    def __init__(self, of: Callable[[float, float], JobOutcome], base: float = 100) -> None:
        self._of, self._base = of, base
        self.tried: list[tuple[float, float]] = []
        self.jobs: list[Job] = []

    def run(self, jobs: Sequence[Job]) -> list[JobOutcome]:
        self.jobs += jobs
        self.tried += [(job.variation.rate, job.variation.length) for job in jobs]
        return [self._of(job.variation.rate, self._base * job.variation.length) for job in jobs]


def run_longer(first: JobOutcome, server: Server, goal: Goal = GOAL, begun: float = 1.0) -> Sustained:
    runner: Any = server
    return sustained(CONFIG, goal, runner, first, begun)


# -- longer runs -------------------------------------------------------------------------------------------


def test_a_load_is_run_four_times_as_long_until_it_has_enough_requests() -> None:
    server = Server(lambda _, requests: outcome(requests))
    found = run_longer(outcome(100), server)
    assert [length for _, length in server.tried] == [4, 16, 64]
    assert (found.length, found.settled, found.fixed, found.requests) == (64, True, False, 6400)


@pytest.mark.parametrize(
    ("most", "lengths"),
    [(199, []), (200, [2.0]), (399, [3.99]), (400, [4.0]), (799, [4.0]), (800, [4.0, 8.0]), (0, [])],
)
def test_the_last_run_is_as_long_as_may_be_but_at_least_twice_the_one_before(
    most: int, lengths: list[float]
) -> None:
    server = Server(lambda _, requests: outcome(requests))
    found = run_longer(outcome(100), server, replace(GOAL, most_requests=most))
    assert [length for _, length in server.tried] == pytest.approx(lengths)
    assert not found.settled


def test_a_run_without_requests_is_not_extended() -> None:
    server = Server(lambda *_: outcome(0))
    run_longer(outcome(0), server)
    assert not server.tried


def test_a_load_that_cannot_be_extended_is_fixed_only_from_the_beginning() -> None:
    found = run_longer(outcome(100), Server(lambda *_: outcome(100)))
    assert (found.length, found.fixed) == (1, True)
    assert run_longer(outcome(100), Server(lambda *_: JobOutcome(failed="f"))).fixed
    server = Server(lambda _, requests: outcome(min(requests, 400)))
    found = run_longer(outcome(100), server)
    assert (found.length, found.fixed) == (4, False)
    assert run_longer(outcome(300), Server(lambda *_: outcome(300)), begun=3.0).fixed


def test_a_longer_run_that_misses_is_the_answer() -> None:
    found = run_longer(outcome(100), Server(lambda _, requests: outcome(requests, 101.0)))
    assert (found.length, found.judgement.holds) == (4, False)
    missed = Server(lambda _, requests: outcome(requests))
    assert run_longer(outcome(100, 101.0), missed).length == 1
    assert not missed.tried


def test_a_figure_that_still_changes_is_run_longer() -> None:
    """At 2,000 requests and more by 5.1 % from one run to the next."""
    server = Server(lambda _, requests: outcome(requests, 50 * 1.051 ** np.log2(requests / 2000)), base=2000)
    goal = replace(GOAL, most_requests=40_000)
    assert run_longer(outcome(2000), server, goal).length == 16
    calm = Server(lambda _, requests: outcome(requests, 50.0), base=2000)
    assert run_longer(outcome(2000), calm, goal).length == 4


def test_a_sample_on_the_edge_is_run_longer_and_by_little() -> None:
    edge: dict[str, Any] = {"generated": True, "intervals": {"ttft.p99=100ms": (90.0, 110.0)}}
    server = Server(lambda _, requests: outcome(requests, 99.0, **edge))
    found = run_longer(outcome(7000, 101.0, **edge), server)
    assert server.tried == [pytest.approx((1.0, 10 / 7))]
    assert found.on_edge
    assert found.growth == 1.2


@pytest.mark.parametrize(
    ("facts", "verdict", "alone"),
    [
        ({}, SATURATED, True),
        ({}, "", False),
        ({"generated": True}, SATURATED, False),
        ({"closed": True}, SATURATED, False),
    ],
)
def test_only_the_backlog_of_a_recorded_open_loop_may_grow_by_its_shape(
    facts: dict[str, Any], verdict: str, alone: bool
) -> None:
    run = outcome(9, 50.0, verdict, **facts)
    found = Sustained(Goal().judge(run), run, 1.0, False)
    assert found.backlog_alone == alone
    assert found.may_hold == (alone or not verdict)
    missed = outcome(9, 101.0, SATURATED)
    assert not Sustained(Goal().judge(missed), missed, 1.0, False).backlog_alone


@pytest.mark.parametrize(
    ("facts", "interval", "measured", "edge"),
    [
        ({"generated": True}, (90.0, 110.0), 101.0, True),
        ({"generated": True}, (90.0, 110.0), 99.0, True),
        ({}, (90.0, 110.0), 101.0, False),
        ({"generated": True}, (90.0, 100.0), 95.0, False),
        ({"generated": True}, (90.0, 100.1), 95.0, True),
        ({"generated": True}, (100.0, 110.0), 105.0, True),
        ({"generated": True}, (100.1, 110.0), 105.0, False),
        ({"generated": True}, (None, 110.0), 105.0, True),
        ({"generated": True}, (90.0, None), 105.0, True),
    ],
)
def test_a_generated_load_is_on_the_edge_where_a_limit_lies_within_the_interval(
    facts: dict[str, Any], interval: tuple[Any, Any], measured: float, edge: bool
) -> None:
    run = outcome(9, measured, intervals={"ttft.p99=100ms": interval}, **facts)
    assert on_edge(run, Goal().judge(run)) == edge
    assert not on_edge(run, replace(Goal().judge(run), saturated=True))
    both = replace(run, slo=[*run.slo, target(101.0, slo="e2e.p99=100ms")])  # this one is missed for certain
    assert not on_edge(both, Goal().judge(both))


def test_a_target_without_an_interval_is_decided_whatever_its_limit() -> None:
    run = replace(outcome(9), slo=[target(0.4, limit=0.5)])
    assert undecided(run) == []


def judged(measured: float | None, holds: bool = True, what: str = "ttft.p99") -> Judgement:
    slack = 0.5 if measured is None else 1 - measured / 100
    return Judgement(holds, (Requirement(what, 100.0, measured, "ms", slack),))


def test_judgements_are_alike_by_their_tightest_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stationary, "_CLOSE", 0.25)
    assert [_alike(judged(40.0), judged(measured)) for measured in (50.0, 50.1, 30.0, 29.9)] == [
        *(True, False, True, False)
    ]
    # Where it cannot be compared, by whether they hold.
    for one, other in ((None, 40.0), (40.0, None), (0.0, 40.0)):
        assert _alike(judged(one), judged(other))
        assert not _alike(judged(one), judged(other, holds=False))
    assert _alike(judged(40.0, what="itl.p99"), judged(80.0))
    assert not _alike(judged(40.0, what="itl.p99"), judged(80.0, holds=False))
    assert _alike(Judgement(True), Judgement(True))
    two = Judgement(True, (*judged(10.0, what="itl.p99").requirements, *judged(40.0).requirements))
    assert _alike(two, judged(50.0))


def test_rates_are_the_same_within_a_twentieth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stationary, "_SAME", 0.25)
    same = [_same(HighestRate(1.0), HighestRate(factor)) for factor in (1.25, 1.26, 0.75, 0.74, None)]
    assert same == [True, False, True, False, False]
    assert not _same(HighestRate(None), HighestRate(1.0))
    assert _same(HighestRate(None), HighestRate(None))


# -- enough requests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "verdict", "facts", "enough"),
    [
        (2000, "", {}, True),
        (1999, "", {}, False),
        (2000, TOO_SHORT, {}, False),
        (2200, "", {"generated": True, "dispersion": 11.0}, True),
        (2199, "", {"generated": True, "dispersion": 11.0}, False),
        (2000, "", {"dispersion": 11.0}, True),
        (2000, "", {"generated": True}, True),
    ],
)
def test_a_run_needs_two_thousand_requests_and_two_hundred_bursts(
    requests: int, verdict: str, facts: dict[str, Any], enough: bool
) -> None:
    assert is_enough(outcome(requests, verdict=verdict, **facts)) == enough


@pytest.mark.parametrize(
    ("at_once", "attainment", "needed"),
    [
        (1, {}, 2000),
        (10, {}, 4000),
        (5, {}, 2000),
        (8, {}, 3200),
        (10, {"": 0.995}, 8000),
        (10, {"": 1.0}, 4000),
    ],
)
def test_the_start_of_a_closed_loop_is_a_quarter_of_the_tail_at_most(
    at_once: int, attainment: dict[str, float], needed: int
) -> None:
    run = outcome(needed, closed=True, at_once=at_once)
    goal = Goal(attainment=attainment)
    assert requests_needed(run, goal) == needed
    assert is_steady(run, goal)
    assert not is_steady(outcome(needed - 1, closed=True, at_once=at_once), goal)
    assert not is_steady(outcome(needed), goal)


def test_a_run_is_as_long_as_its_kind_may_be() -> None:
    goal = Goal(most_requests=1000, most_extended=1500)
    assert steady_length(outcome(100, generated=True), goal) == 10
    assert steady_length(outcome(100, closed=True, at_once=1), goal) == 15
    assert steady_length(outcome(5000, generated=True), goal) == 1
    assert steady_length(outcome(0, generated=True), goal) == 1000
    assert steady_length(outcome(100), goal) == 1


# -- rates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "factors"),
    [
        (1.0, 1.03, []),
        (1.0, 1.06, [1.02, 1.04]),
        (2.0, None, [2.5, 3.6]),
        (100.0, None, []),
        (99.9, None, [124.875, 179.82]),
        (None, 2.0, [1.0, 1.6]),
        (None, 0.01, []),
        (None, 0.011, [0.0055, 0.0088]),
    ],
)
def test_factors_are_sought_upwards_downwards_and_in_between(
    low: float | None, high: float | None, factors: list[float]
) -> None:
    assert next_factors(low, high) == pytest.approx(factors)


def up_to(most: float, *, base: float = 100, **facts: Any) -> Server:
    """A server that holds up to a factor on the rate."""
    return Server(lambda rate, requests: outcome(requests, 50.0 if rate <= most else 150.0, **facts), base)


def start(holds: bool = True, requests: int = 6400, length: float = 64.0, **facts: Any) -> Sustained:
    run = outcome(requests, 50.0 if holds else 150.0, **facts)
    return Sustained(Goal().judge(run), run, length, True)


def search(server: Server, begin: Sustained, goal: Goal = GOAL) -> _RateSearch:
    runner: Any = server
    return _RateSearch(CONFIG, goal, runner, begin)


@pytest.mark.parametrize(
    ("begin", "first", "bracket"),
    [
        (start(), 16.0, [1.0, 1.25]),
        (start(holds=False), 64.0, [0.8, 1.0]),
        (start(requests=100, length=2.0), 1.0, [1.0, 1.25]),
        (start(requests=640_000), 1.0, [1.0, 1.25]),
        (start(holds=False, requests=640_000), 64.0, [0.8, 1.0]),
    ],
)
def test_a_rate_is_sought_over_a_quarter_of_the_duration_that_holds(
    begin: Sustained, first: float, bracket: list[float]
) -> None:
    found = search(up_to(1), begin)
    assert found.first_length() == first
    assert found.bracket() == bracket
    assert found.as_long_as_start() == begin.length


@pytest.mark.parametrize("most", [0.3, 0.999, 1.0, 1.249, 3.3])
@pytest.mark.parametrize("holds", [False, True])
def test_the_highest_rate_is_the_last_that_holds(most: float, holds: bool) -> None:
    server = up_to(most)
    found = search(server, start(holds)).at(16.0, [1.0, 1.25] if holds else [0.8, 1.0])
    assert found.factor is not None
    assert found.factor <= most < found.factor * 1.031
    assert found.broken is not None
    assert (found.per_s, found.span_s, found.length) == (5.0, 7.0, 16.0)
    assert found.requests == int(100 * min(16 * max(found.factor, 1), 64))
    assert all(job.stops_at == (HOPELESS,) for job in server.jobs)


def test_rates_end_at_a_hundred_and_at_a_hundredth() -> None:
    above = search(up_to(1e9), start()).at(1.0, [1.0, 1.25])
    assert above.factor is not None
    assert above.factor >= 100
    assert above.broken is None
    below = search(up_to(0), start()).at(1.0, [0.8, 1.0])
    assert (below.factor, below.per_s, below.requests, below.span_s) == (None, None, 0, 0.0)


def test_a_rate_that_holds_above_one_that_does_not_is_left_alone() -> None:
    """Of 1.0 and 1.25 only the second holds: 1.0 is the first that breaks."""
    odd = Server(lambda rate, requests: outcome(requests, 50.0 if rate == 1.25 or rate < 0.7 else 150.0))
    found = search(odd, start()).at(1.0, [1.0, 1.25])
    assert found.factor is not None
    assert found.factor < 0.7


@pytest.mark.parametrize(
    ("rate", "length", "longer"),
    [
        (HighestRate(None), 1.0, None),
        (HighestRate(100.0, requests=10**6), 1.0, None),
        (HighestRate(1.0, requests=90), 1.0, 4.0),
        (HighestRate(1.0, requests=89), 1.0, None),
        (HighestRate(2.0, requests=180), 1.0, 4.0),
        (HighestRate(0.5, requests=90), 1.0, 4.0),
        (HighestRate(1.0, requests=6400), 32.0, 64.0),
        (HighestRate(1.0, requests=6400), 33.0, None),
        (HighestRate(2.0, requests=6400), 16.0, 32.0),
    ],
)
def test_the_next_duration_is_four_times_as_long_or_twice_at_the_end(
    rate: HighestRate, length: float, longer: float | None
) -> None:
    assert search(up_to(1), start()).longer(rate, length) == longer


@pytest.mark.parametrize(
    ("length", "factor", "whole", "found"),
    [
        (4, 2.0, False, 8),
        (4, 0.5, False, 4),
        (40, 2.0, False, 64),
        (0.2, 1.0, False, 1),
        (90, 2.0, True, 100),
    ],
)
def test_a_run_at_a_higher_rate_has_more_requests(
    length: float, factor: float, whole: bool, found: float
) -> None:
    begin = start(generated=True)
    assert search(up_to(1), begin)._length(length, factor, whole=whole) == found


BROKEN = Judgement(False)


@pytest.mark.parametrize(
    ("rate", "widths", "bounds", "settled"),
    [
        (HighestRate(1.0, broken=BROKEN), (0.05, 0.12), RateBounds(0.95, 1.05, 6400), True),
        (HighestRate(1.0, broken=BROKEN), (0.01, 0.12), RateBounds(0.99, 1.12, 6400), False),
        (HighestRate(1.0, broken=BROKEN), (0.01,), None, True),
        (HighestRate(1.0, broken=BROKEN), (0.05,), RateBounds(0.95, 1.05, 6400), True),
        (HighestRate(1.0, broken=BROKEN), (0.01, 0.02), RateBounds(0.99, None, 6400), False),
        (HighestRate(None, broken=BROKEN), (0.05,), None, True),
        (HighestRate(1.0), (0.05,), None, True),
    ],
)
def test_a_rate_lies_between_one_that_holds_and_one_that_breaks(
    rate: HighestRate, widths: tuple[float, ...], bounds: RateBounds | None, settled: bool
) -> None:
    """Of a server that holds up to 1.04."""
    server = up_to(1.04)
    found = search(server, start()).bounded(rate, widths, 64.0)
    assert found.bounds == (None if bounds is None else pytest.approx(bounds))
    assert found.settled == settled
    assert all(job.stops_at == () for job in server.jobs)
    if bounds == RateBounds(0.99, 1.12, 6400):  # what is certain is not tried again
        assert [rate for rate, _ in server.tried] == pytest.approx([0.99, 1.01, 1.12])


def test_few_requests_bound_no_rate() -> None:
    def bounded(requests: int) -> HighestRate:
        fixed = Server(lambda rate, _: outcome(requests, 50.0 if rate <= 1 else 150.0))
        return search(fixed, start()).bounded(HighestRate(1.0, broken=BROKEN), (0.05,), 64.0)

    assert bounded(2000).bounds is not None
    assert bounded(1999).bounds is None


def test_a_rate_with_bounds_keeps_them() -> None:
    known = HighestRate(1.0, broken=BROKEN, bounds=RateBounds(0.9, 1.1, 5))
    assert search(up_to(9), start()).bounded(known, (0.05,), 64.0) is known


def test_a_recorded_load_is_made_longer_until_its_rate_stays() -> None:
    server: Any = up_to(1.5)
    found = highest_rate(CONFIG, GOAL, server, start(requests=100, length=1.0))
    assert found.factor is not None
    assert found.factor <= 1.5 < found.factor * 1.05
    assert (found.settled, found.bounds) == (True, None)
    assert found.requests >= 2000
    fixed: Any = Server(lambda rate, _: outcome(100, 50.0 if rate <= 1.5 else 150.0))
    short = highest_rate(CONFIG, GOAL, fixed, start(requests=100, length=1.0))
    assert not short.settled


def test_a_generated_load_has_bounds_of_its_rate() -> None:
    sample: dict[str, Any] = {"generated": True, "intervals": {"ttft.p99=100ms": (10.0, 20.0)}}
    server: Any = up_to(1.5, **sample)
    found = highest_rate(CONFIG, GOAL, server, start(requests=100, length=1.0, **sample))
    assert found.bounds is not None
    assert found.bounds.least is not None
    assert found.bounds.most is not None
    assert found.bounds.least < 1.5 < found.bounds.most
    assert found.settled


def test_a_factor_stands_for_a_rate() -> None:
    assert HighestRate(2.0, 10.0).per_s_at(3.0) == 15.0
    assert HighestRate(None, None).per_s_at(3.0) == 0.0


# -- intervals ---------------------------------------------------------------------------------------------


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


# -- draws and levers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("residual", "stops"),
    [({}, (HOPELESS,)), ({"a": 1.0, "b": 1.2}, (HOPELESS,)), ({"a": 0.9, "b": 1.2}, ()), ({"a": 0.9}, ())],
)
def test_a_draw_with_any_faster_latency_is_not_given_up_early(
    residual: dict[str, float], stops: tuple[str, ...]
) -> None:
    drawn = Errors((Draw(1.1, {(name, "p99"): factor for name, factor in residual.items()}),), "s", 9)
    (job,) = draws(CONFIG, drawn, Goal(max_lost=0.1), 3.0).values()
    assert job.stops_at == stops
    assert (job.max_lost, job.variation.length, job.variation.resample) == (0.1, 3.0, None)
    assert job.config.seed != CONFIG.seed
    recorded = replace(CONFIG, workload=replace(CONFIG.workload, trace="t.csv"))
    (job,) = draws(recorded, drawn, Goal(), 1.0).values()
    assert job.config == recorded
    assert job.variation.resample is not None


def test_levers_are_a_quarter_of_a_resource_and_settings_up_to_four_times_as_large() -> None:
    scheduler = replace(CONFIG.scheduler, max_num_seqs=64, max_num_batched_tokens=128)
    jobs = levers(replace(CONFIG, scheduler=scheduler), Variation(rate=2.0), 50)
    assert all(job.variation.rate == 2.0 for job in jobs.values())
    assert {job.config.scheduler.num_kv_blocks for job in jobs.values()} == {50}
    named = {name.partition(": ")[2] for name in jobs}
    assert {"a 25 % faster GPU", "a 25 % faster host", "25 % more KV blocks"} <= named
    tried = {name.rpartition(" ")[2] for name in named if "max_num_batched_tokens" in name}
    assert tried == {"64", "256", "512"}  # 32 are fewer than sequences
    tried = {name.rpartition(" ")[2] for name in named if "max_num_seqs" in name}
    assert tried == {"16", "32", "128"}  # 256 are more than tokens
    faster = jobs["compute: a 25 % faster GPU"].variation
    assert (faster.gpu_time, faster.host_time) == (0.8, 1.0)


def test_early_verdicts_judge_without_figures() -> None:
    assert Goal().judge(JobOutcome(early_stop=FINE)) == Judgement(True, early_stop=FINE)
    assert Goal().judge(JobOutcome(early_stop=HOPELESS)) == Judgement(False, early_stop=HOPELESS)
    assert Goal().judge(JobOutcome(failed="f")) == Judgement(False, refused="f")
