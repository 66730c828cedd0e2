from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_py.core.bounds import MAX_TOKENS
from blis_py.requests.streams import stream
from blis_py.workload import arrivals, lengths
from blis_py.workload.arrivals import Arrivals, arrivals_until, weibull_shape
from blis_py.workload.lengths import Lengths, sample

HOUR_NS = 3_600 * 10**9


def gaps_us(process: str, rate: float, cv: float = 1.0, hours: int = 8) -> np.ndarray:
    times = arrivals_until(Arrivals(process, rate, cv=cv), stream(7, process, str(cv)), hours * HOUR_NS)
    return np.diff(times) / 1e3


@pytest.mark.parametrize(
    ("process", "cv"),
    [("poisson", 1.0), ("gamma", 0.3), ("gamma", 1.0), ("gamma", 3.0), ("weibull", 0.5), ("weibull", 2.0)],
)
def test_gaps_have_the_given_rate_and_variation(process: str, cv: float) -> None:
    gaps = gaps_us(process, rate=10.0, cv=cv)
    assert gaps.mean() == pytest.approx(1e5, rel=0.02 * max(1, cv))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.04)


def test_poisson_gaps_are_exponential() -> None:
    gaps = gaps_us("poisson", rate=10.0)
    for quantile in (0.1, 0.5, 0.9, 0.99):
        assert np.quantile(gaps, quantile) == pytest.approx(-math.log(1 - quantile) * 1e5, rel=0.05)


def test_constant_arrivals_are_whole_microseconds_apart_and_start_after_one_gap() -> None:
    times = arrivals_until(Arrivals("constant", 7.0), stream(1), 10**9)
    assert times.tolist() == [142_857_000 * number for number in range(1, 8)]  # int(1e6 / 7) us


def test_explicit_shape_and_scale_fix_the_rate() -> None:
    chosen = Arrivals("gamma", rate=1.0, shape=2.0, scale_us=5e4)
    gaps = np.diff(arrivals_until(chosen, stream(3), HOUR_NS)) / 1e3
    assert gaps.mean() == pytest.approx(1e5, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(2), rel=0.03)


@pytest.mark.parametrize("cv", [0.01, 0.1, 1.0, 3.0, 10.4])
def test_weibull_shape_reproduces_its_variation(cv: float) -> None:
    k = weibull_shape(cv)
    assert math.sqrt(math.gamma(1 + 2 / k) / math.gamma(1 + 1 / k) ** 2 - 1) == pytest.approx(cv, rel=1e-6)


@given(
    st.sampled_from(sorted(arrivals.PROCESSES)),
    st.integers(1, 5),
    st.integers(1, 40),
    st.sampled_from([0.4, 1.0, 4.0]),
)
def test_a_longer_horizon_continues_the_same_arrivals(
    process: str, short_s: int, more_s: int, cv: float
) -> None:
    chosen = Arrivals(process, 20.0, cv=cv)
    short = arrivals_until(chosen, stream(5), short_s * 10**9)
    long = arrivals_until(chosen, stream(5), (short_s + more_s) * 10**9)
    assert np.array_equal(long[: len(short)], short)
    assert np.all(long[len(short) :] >= short_s * 10**9)
    assert np.all(np.diff(long) >= 0)


DISTRIBUTIONS = {
    "gaussian": Lengths("gaussian", {"mean": 500, "std_dev": 50, "min": 2, "max": 7000}),
    "truncated": Lengths("truncated", {"mean": 200, "std_dev": 256, "min": 2, "max": 7000}),
    "uniform": Lengths("uniform", {"min": 100, "max": 300}),
    "exponential": Lengths("exponential", {"mean": 300}),
    "lognormal": Lengths("lognormal", {"mu": 6.0, "sigma": 0.5}),
    "pareto_lognormal": Lengths(
        "pareto_lognormal", {"alpha": 3.0, "xm": 100, "mu": 5.0, "sigma": 0.5, "mix_weight": 0.3}
    ),
    "constant": Lengths("constant", {"value": 17}),
    "empirical": Lengths("empirical", {"10": 1, "100": 2, "1000": 1}),
}
MEANS = {
    "gaussian": 500,
    "truncated": 200,
    "uniform": 200,
    "exponential": 300,
    "lognormal": math.exp(6 + 0.125),
    "pareto_lognormal": 0.3 * 150 + 0.7 * math.exp(5 + 0.125),
    "constant": 17,
    "empirical": 302.5,
}


@pytest.mark.parametrize("name", sorted(lengths.SAMPLERS))
def test_token_counts_have_the_distributions_mean(name: str) -> None:
    assert sample(DISTRIBUTIONS[name], stream(11, name), 200_000).mean() == pytest.approx(
        MEANS[name], rel=0.02
    )


def test_gaussian_lengths_have_the_given_spread() -> None:
    assert sample(DISTRIBUTIONS["gaussian"], stream(1), 100_000).std() == pytest.approx(50, rel=0.02)


def test_empirical_lengths_occur_with_their_weights() -> None:
    drawn = sample(DISTRIBUTIONS["empirical"], stream(2), 100_000)
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [10, 100, 1000]
    assert counts / len(drawn) == pytest.approx([0.25, 0.5, 0.25], abs=0.01)


def test_gaussian_lengths_are_clamped_before_they_are_rounded() -> None:
    drawn = sample(Lengths("gaussian", {"mean": 10, "std_dev": 100, "min": 4, "max": 20}), stream(3), 10_000)
    assert (drawn.min(), drawn.max()) == (4, 20)
    assert np.mean(drawn == 4) == pytest.approx(0.476 + 0.002, abs=0.02)  # all the mass below 4.5


def test_heavy_tails_stay_below_the_ceiling() -> None:
    wild = Lengths("pareto_lognormal", {"alpha": 0.01, "xm": 10, "mu": 1, "sigma": 1, "mix_weight": 1})
    drawn = sample(wild, stream(4), 1000)
    assert drawn.max() == MAX_TOKENS
    assert drawn.min() >= 10


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("exponential", {"mean": 1e308}),
        ("gaussian", {"mean": 1e308, "std_dev": 1e308}),
        ("lognormal", {"mu": 1e308, "sigma": 1.0}),
        ("pareto_lognormal", {"alpha": 1e-300, "xm": 1e308, "mu": 0.0, "sigma": 1.0, "mix_weight": 1.0}),
    ],
)
def test_lengths_beyond_all_numbers_are_the_ceiling_without_a_warning(
    name: str, parameters: dict[str, float]
) -> None:
    assert MAX_TOKENS in sample(Lengths(name, parameters), stream(1, name), 50)


@given(st.sampled_from(sorted(DISTRIBUTIONS)), st.integers(0, 50), st.integers(0, 50))
def test_a_larger_sample_extends_a_smaller_one(name: str, count: int, more: int) -> None:
    small = sample(DISTRIBUTIONS[name], stream(9, name), count)
    large = sample(DISTRIBUTIONS[name], stream(9, name), count + more)
    assert np.array_equal(large[:count], small)
    assert np.all(large >= 1)


def test_streams_with_different_names_are_unrelated() -> None:
    one, other = stream(42, "client", "a", "input"), stream(42, "client", "a", "output")
    assert abs(np.corrcoef(one.random(20_000), other.random(20_000))[0, 1]) < 0.03
    assert stream(42, "ab", "c").random() != stream(42, "a", "bc").random()
    assert stream(-1, "a").random() == stream(-1, "a").random()
