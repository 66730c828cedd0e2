"""Highest rates and their bounds, on servers whose behaviour is a formula."""

from __future__ import annotations

from typing import Any

import pytest
from formula_servers import CONFIG, GOAL, Server, outcome

from blis_py.planning.goal import Goal, Judgement
from blis_py.planning.job import HOPELESS
from blis_py.planning.stationary import (
    HighestRate,
    RateBounds,
    Sustained,
    _RateSearch,
    highest_rate,
    next_factors,
)


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
