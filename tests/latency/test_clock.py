"""Step times and the end of the clock: what goes beyond it is refused, and never begins anew from below 0."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.latency.base import LatencyModel
from blis_py.latency.decode_line import DecodeLine, run_along
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.latency.step_run import LAST_NS, LONGEST_NS, PricedRun, StepRun, run_of, within_the_clock

YEAR_NS = 31_557_600 * 10**9
LONG = 4_000
"""Steps enough for every way to price a run."""


def ends_one_by_one(
    line: DecodeLine, kv_tokens: int, growth: int, steps: int, start_ns: int, until_ns: int
) -> list[int]:
    """In whole numbers without bounds."""
    ends, end = [], start_ns
    for step in range(steps):
        price = line.at(kv_tokens + step * growth)
        if price * line.unit_ns >= NEVER_NS:
            return ends
        end += (int(price) or 1) * line.unit_ns + line.fixed_ns
        ends.append(end)
        if end >= until_ns or end >= NEVER_NS:
            return ends
    return ends


@pytest.mark.parametrize("steps", [1, 5, LONG])
@pytest.mark.parametrize("unit_ns", [1, 1000])
@pytest.mark.parametrize("years", [0.001, 1, 40, 100, 146.2, 1000, 1e9, 1e300])
def test_a_run_along_a_line_ends_within_the_clock_or_is_refused(
    steps: int, unit_ns: int, years: float
) -> None:
    line = DecodeLine(years * YEAR_NS / unit_ns, 0.0, 1.0, 0.0, 1.0, unit_ns)
    expected = ends_one_by_one(line, 100, 4, steps, 7, NEVER_NS)
    if not expected or expected[-1] > LAST_NS:
        with pytest.raises(OverflowError):
            run_along(line, 100, 4, steps, 7, NEVER_NS)
    else:
        run = run_along(line, 100, 4, steps, 7, NEVER_NS)
        assert run.ends_ns().tolist() == expected


@pytest.mark.parametrize("steps", [5, LONG])
def test_a_run_is_cut_at_an_arrival_however_long_its_later_steps_would_be(steps: int) -> None:
    """Each step is much longer than the one before; the clock would end with the fourth."""
    line = DecodeLine(0.0, 0.0, float(YEAR_NS), 0.0, 0.0)
    run = run_along(line, 1, 30, steps, 0, 10 * YEAR_NS)
    assert run.ends_ns().tolist() == [YEAR_NS, YEAR_NS + 31 * YEAR_NS]
    with pytest.raises(OverflowError):
        run_along(line, 1, 30, steps, 0, NEVER_NS)


def model() -> Linear:
    return Linear(LinearCoefficients(gpu=LinearCosts(step=1.0, decode_kv_tokens=3.6e12)))


@pytest.mark.parametrize("steps", [5, LONG])
@pytest.mark.parametrize("kv_tokens", [10**3, 10**5, 10**6, 10**9, 10**15])
def test_linear_costs_end_within_the_clock_or_are_refused(steps: int, kv_tokens: int) -> None:
    costs: LatencyModel = model()
    features = StepFeatures(decode_seqs=3, decode_kv_tokens=kv_tokens, emitted_rows=3)
    total_ns = sum(3.6e12 * (kv_tokens + 3 * step) for step in range(steps))
    if total_ns < LONGEST_NS:
        assert costs.decode_run(features, steps).end_ns == pytest.approx(total_ns, rel=1e-9)
    else:
        with pytest.raises(OverflowError):
            costs.decode_run(features, steps)


def test_no_run_ends_after_the_clock_does() -> None:
    assert StepRun(1, LAST_NS).end_ns == LAST_NS
    assert PricedRun([5, LAST_NS]).end_ns == LAST_NS
    for late in (
        lambda: StepRun(1, LAST_NS + 1),
        lambda: PricedRun([5, 2**63 - 1]),
        lambda: StepRun(2, 10**40),
    ):
        with pytest.raises(OverflowError, match="century"):
            late()


@given(
    st.lists(st.integers(1, 2**62 - 1), min_size=1, max_size=20),
    st.integers(0, LAST_NS),
    st.integers(1, 2**62),
)
def test_durations_are_summed_as_whole_numbers_are(
    durations: list[int], start_ns: int, until_ns: int
) -> None:
    ends, end = [], start_ns
    for duration in sorted(durations):
        end += duration
        ends.append(end)
        if end >= until_ns:
            break
    if ends[-1] > LAST_NS:
        with pytest.raises(OverflowError):
            run_of(np.array(sorted(durations)), start_ns, until_ns)
    else:
        assert run_of(np.array(sorted(durations)), start_ns, until_ns).ends_ns().tolist() == ends


def test_prices_are_taken_as_far_as_the_clock_resolves_them() -> None:
    prices = np.array([1.0, 2.0, 1e18, 1e19, np.inf])
    assert within_the_clock(prices).tolist() == [1.0, 2.0, 1e18]
    with pytest.raises(OverflowError):
        within_the_clock(prices[3:])
    with pytest.raises(OverflowError):
        within_the_clock(np.array([np.nan]))


@pytest.mark.parametrize("unit_ns", [1, 1000])
@pytest.mark.parametrize("steps", [1, LONG])
def test_the_longest_step_is_the_first_that_is_refused(unit_ns: int, steps: int) -> None:
    longest = LONGEST_NS / unit_ns
    with pytest.raises(OverflowError):
        run_along(DecodeLine(longest, 0.0, 0.0, 0.0, 0.0, unit_ns), 1, 1, steps, 0, NEVER_NS)
    shorter = float(np.nextafter(longest, 0.0))
    line = DecodeLine(shorter, 0.0, 0.0, 0.0, 0.0, unit_ns)
    assert run_along(line, 1, 1, 1, 0, NEVER_NS).end_ns == int(shorter) * unit_ns
