from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blis_py.metrics.distribution import Distribution

pairs = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 6)), min_size=1, max_size=40)
percent = st.one_of(st.sampled_from([0.0, 50.0, 90.0, 95.0, 99.0, 99.9, 100.0]), st.floats(0, 100))


@given(pairs, percent)
def test_a_weighted_percentile_is_numpys_of_the_expanded_list(data: list[tuple[int, int]], q: float) -> None:
    values, weights = (np.array(column, dtype=np.int64) for column in zip(*data, strict=True))
    expanded = np.repeat(values, weights).astype(np.float64)
    order = np.argsort(values)
    found = Distribution.weighted(values[order], weights[order]).percentile(q)
    if len(expanded):
        assert found == np.percentile(expanded, q)
    else:
        assert np.isnan(found)


@given(st.lists(st.floats(0, 1e15), min_size=1, max_size=60), percent)
@example([291260854228312.0, 9.86602667425155e16], 50.0)  # in the middle the two forms differ
def test_an_unweighted_percentile_is_numpys(samples: list[float], q: float) -> None:
    assert Distribution.of(np.array(samples)).percentile(q) == np.percentile(samples, q)


@given(pairs.filter(lambda data: any(weight for _, weight in data)))
def test_mean_std_and_extremes_are_those_of_the_expanded_list(data: list[tuple[int, int]]) -> None:
    values, weights = (np.array(column, dtype=np.int64) for column in zip(*sorted(data), strict=True))
    expanded = np.repeat(values, weights)
    distribution = Distribution.weighted(values, weights)
    assert distribution.count == len(expanded)
    assert distribution.mean() == pytest.approx(expanded.mean())
    assert distribution.std() == pytest.approx(expanded.std(), abs=1e-3)
    assert distribution.stat("min") == expanded.min()
    assert distribution.stat("max") == expanded.max()
    assert distribution.stat("median") == np.median(expanded)
    assert distribution.stat("p99.9") == np.percentile(expanded, 99.9)


def test_the_samples_given_are_left_as_they_were() -> None:
    samples = np.array([3.0, 1.0, 2.0])
    Distribution.of(samples)
    assert samples.tolist() == [3.0, 1.0, 2.0]


def test_a_curve_ends_at_the_largest_value_with_all_samples() -> None:
    values, share = Distribution.of(np.arange(10_000)).curve(points=100)
    assert len(values) == 100
    assert values[-1] == 9_999
    assert share[-1] == 1.0
    assert np.allclose(share, (values + 1) / 10_000)
