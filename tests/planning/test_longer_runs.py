"""Judgements over longer runs, on servers whose behaviour is a formula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from formula_servers import GOAL, Server, outcome, run_longer, target

from blis_py.metrics.load import SATURATED
from blis_py.planning import stationary
from blis_py.planning.goal import Goal, Judgement, Requirement
from blis_py.planning.intervals import undecided
from blis_py.planning.job import JobOutcome
from blis_py.planning.stationary import HighestRate, Sustained, _alike, _same, on_edge


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
