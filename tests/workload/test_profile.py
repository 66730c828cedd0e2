"""Rates that change with time, against their integrals and the laws that follow from them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import chi2, kstest

from blis_py.requests.streams import stream
from blis_py.workload.arrivals import Arrivals, arrivals_until
from blis_py.workload.profile import DAY_US, Profile, of_a_day, ramp_down

HOUR_US = 3600 * 10**6
factors = st.floats(0.0, 1.0).map(lambda value: round(value, 3))


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    lengths = draw(st.lists(st.integers(1, 10**6), min_size=1, max_size=6))
    ends = [draw(factors) for _ in lengths]
    begins = [0.0, *np.cumsum(lengths)[:-1].astype(float).tolist()]
    period = float(sum(lengths)) if draw(st.booleans()) and sum(ends) > 0 else None
    return Profile(tuple(begins), tuple(draw(factors) for _ in lengths), tuple(ends), period)


@pytest.mark.slow
@example(Profile((0.0, 1.0), (0.0, 0.0), (0.25, 0.0)), [5e-324])
@given(profiles(), st.lists(st.floats(0, 5e6), min_size=1, max_size=20))
def test_the_time_at_which_the_clock_shows_something_is_when_it_shows_it(
    profile: Profile, shown: list[float]
) -> None:
    times = profile.when_us(np.array(shown))
    for at, want in zip(times.tolist(), shown, strict=True):
        if math.isinf(at):
            assert profile.passed_us(1e12) <= want + 1e-3
        else:
            assert profile.passed_us(at) == pytest.approx(want, abs=1e-2, rel=1e-9)


def test_the_clock_stands_still_outside_windows() -> None:
    windows = Profile.within([(10.0, 20.0), (15.0, 25.0), (40.0, 50.0)], runs_on=False)
    windows_at = windows.when_us(np.array([0.0, 14.0, 15.0, 16.0, 25.0, 25.1]))
    assert windows_at.tolist() == [10.0, 24.0, 25.0, 41.0, 50.0, math.inf]
    assert [windows.passed_us(at) for at in (5.0, 12.0, 30.0, 99.0)] == [0.0, 2.0, 15.0, 25.0]
    assert windows.end_us == 50.0


def test_a_day_has_its_peak_and_its_trough_and_repeats() -> None:
    day = of_a_day(14, 4)
    per_hour = [
        day.passed_us((hour + 0.5) * HOUR_US) - day.passed_us((hour - 0.5) * HOUR_US) for hour in range(1, 30)
    ]
    assert per_hour[13] == pytest.approx(HOUR_US, rel=0.01)
    assert per_hour[1] == pytest.approx(HOUR_US / 4, rel=0.03)
    assert per_hour[25] == pytest.approx(per_hour[1])
    mean = day.passed_us(DAY_US) / DAY_US
    assert mean == pytest.approx((1 + 1 / 4) / 2, rel=1e-6)


def test_a_ramp_sends_half_of_what_it_would_have_and_then_nothing() -> None:
    ramp = ramp_down(5e6, 10e6)
    assert ramp.passed_us(1e9) == pytest.approx(10e6)
    assert ramp.passed_us(10e6) - ramp.passed_us(5e6) == pytest.approx(3.75e6)
    assert (ramp.end_us, ramp_down(5e6, 0).end_us, ramp_down(0, 4e6).end_us) == (15e6, 5e6, 4e6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "profile",
    [of_a_day(6, 5), ramp_down(4 * HOUR_US, 20 * HOUR_US), Profile.steps([0, HOUR_US, 9e9], [1, 0.2, 0.6])],
    ids=["day", "ramp", "steps"],
)
def test_poisson_arrivals_are_those_of_the_inhomogeneous_process(profile: Profile) -> None:
    """Given their number they are independent draws from the rate; counts of disjoint times are Poisson."""
    end_us = 24 * HOUR_US
    whole = profile.passed_us(end_us)
    times_us = arrivals_until(Arrivals("poisson", 0.2, profile=profile), stream(11), end_us * 1000) / 1e3
    place = np.array([profile.passed_us(at) for at in times_us]) / whole
    assert kstest(place, "uniform").pvalue > 0.01
    counts, _ = np.histogram(place, bins=200, range=(0, 1))
    mean = 0.2 * whole / 1e6 / 200
    dispersion = float(((counts - mean) ** 2 / mean).sum())
    low, high = chi2.ppf([0.005, 0.995], 200)
    assert low < dispersion < high


@pytest.mark.slow
def test_gaps_of_a_renewal_process_keep_their_law_on_the_clock_of_the_rate() -> None:
    profile = of_a_day(6, 5)
    chosen = Arrivals("gamma", 0.2, cv=2.0, profile=profile)
    times_us = arrivals_until(chosen, stream(3), 48 * HOUR_US * 1000) / 1e3
    gaps = np.diff([profile.passed_us(at) for at in times_us]) / 1e6
    assert gaps.mean() == pytest.approx(5, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(2, rel=0.05)
    assert chosen.expected(48 * HOUR_US * 1000) == pytest.approx(len(times_us), rel=0.05)


def test_a_process_that_runs_on_is_the_even_one_without_what_comes_outside() -> None:
    windows = Profile.within([(3e6, 5e6), (9e6, 12e6)], runs_on=True)
    always = Profile.within([(0, 1e8)], runs_on=True)
    even = arrivals_until(Arrivals("gamma", 50.0, cv=2.0, profile=always), stream(1), 10**11)
    cut = arrivals_until(Arrivals("gamma", 50.0, cv=2.0, profile=windows), stream(1), 10**11)
    inside = [at for at in even.tolist() if 3e9 <= at < 5e9 or 9e9 <= at < 12e9]
    assert cut.tolist() == inside


def test_a_longer_time_continues_the_same_arrivals() -> None:
    chosen = Arrivals("weibull", 30.0, cv=1.5, profile=of_a_day(3, 8))
    short, long = (arrivals_until(chosen, stream(5), seconds * 10**9) for seconds in (100, 1000))
    assert long[: len(short)].tolist() == short.tolist()
    assert len(long) > len(short) > 100
