"""Lengths given by flags have the mean that was given, and as much of the spread as there is room for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_py.requests.streams import stream
from blis_py.workload.lengths import Lengths, sample
from blis_py.workload.presets import PRESETS, Sizes, note_of, preset, synthesise
from blis_py.workload.truncated import clamped_mean, truncated_law

MANY = 200_000


@pytest.mark.parametrize(
    ("tokens", "stdev", "low", "high"),
    [(200, 256, 2, 7000), (6900, 3000, 2, 7000), (512, 400, 2, 7000), (60, 256, 2, 90), (3, 256, 2, 7000)],
)
def test_flags_keep_their_mean_where_clamping_would_move_it(
    tokens: int, stdev: int, low: int, high: int
) -> None:
    assert abs(clamped_mean(tokens, stdev, low, high) / tokens - 1) > 0.005
    lengths = synthesise(
        num_requests=20_000,
        output_tokens=tokens,
        output_tokens_stdev=stdev,
        output_tokens_min=low,
        output_tokens_max=high,
    ).output_tokens
    error = 4 * lengths.std() / math.sqrt(len(lengths))
    assert lengths.mean() == pytest.approx(tokens, abs=error)
    assert low <= lengths.min() <= lengths.max() <= high


def test_no_heap_stands_at_a_bound() -> None:
    lengths = synthesise(num_requests=20_000, output_tokens=200).output_tokens
    assert (lengths == 2).mean() < 0.01  # 22 % of them if they were clamped


@pytest.mark.parametrize("keep_mean", [True, False])
def test_where_clamping_moves_the_mean_by_less_than_half_a_percent_lengths_are_those_of_blis(
    keep_mean: bool,
) -> None:
    """The defaults among them: 512 ± 256 from 2 to 7,000."""
    table = synthesise(num_requests=500, keep_mean=keep_mean)
    law = Lengths("gaussian", {"mean": 512, "std_dev": 256, "min": 2, "max": 7000})
    expected = sample(law, stream(42, "client", "distribution", "input"), 500)
    assert np.array_equal(table.prompt_tokens, expected)


def test_the_distribution_of_blis_stays_clamped() -> None:
    lengths = synthesise(num_requests=20_000, output_tokens=200, keep_mean=False).output_tokens
    assert (lengths == 2).mean() == pytest.approx(0.22, abs=0.01)
    assert lengths.mean() == pytest.approx(clamped_mean(200, 256, 2, 7000), rel=0.02)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_stay_clamped(name: str) -> None:
    table = preset(name, rate=1.0, num_requests=300)
    for side, sizes in (("input", PRESETS[name][0]), ("output", PRESETS[name][1])):
        params = {"mean": sizes.tokens, "std_dev": sizes.stdev, "min": sizes.min, "max": sizes.max}
        drawn = table.prompt_tokens if side == "input" else table.output_tokens
        assert np.array_equal(
            drawn, sample(Lengths("gaussian", params), stream(42, "client", name, side), 300)
        )


def test_what_became_of_the_lengths_is_reported() -> None:
    sizes = Sizes(200, 256, 2, 7000)
    assert note_of(sizes, "output", keep_mean=True) == (
        "output lengths: the mean of 200 tokens is kept; between 2 and 7,000 their standard deviation is "
        "198, the largest of a truncated normal law, not 256"
    )
    assert note_of(sizes, "output", keep_mean=False) == (
        "output lengths: clamped to what lies between 2 and 7,000, as in BLIS, their mean becomes "
        "232 tokens, not 200"
    )
    assert note_of(Sizes(512, 256, 2, 7000), "output", keep_mean=True) is None
    assert note_of(Sizes(512, 400, 2, 7000), "output", keep_mean=True) is None  # both are kept


SIZES = st.tuples(st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 5000), st.integers(0, 5000))


@given(SIZES)
def test_the_law_has_the_given_mean_and_at_most_the_deviation(sizes: tuple[int, int, int, int]) -> None:
    mean, stdev, below, above = sizes
    low, high = max(1, mean - below), mean + above
    law = truncated_law(float(mean), float(stdev), low, high)
    assert law.mean == pytest.approx(mean, abs=1e-3)
    assert law.stdev <= stdev * (1 + 1e-6) + 1e-9
    drawn = law.draw(np.random.default_rng(1), 200)
    assert np.floor(drawn + 0.5).min() >= low
    assert np.floor(drawn + 0.5).max() <= high


@given(st.integers(2, 1000), st.integers(2, 60), st.integers(2, 60))
def test_the_given_deviation_is_met_where_there_is_room(stdev: int, below: int, above: int) -> None:
    """Two deviations on either side will do."""
    low = 1
    mean = low + below * stdev
    law = truncated_law(float(mean), float(stdev), low, mean + above * stdev)
    assert law.stdev == pytest.approx(stdev, rel=2e-3)


@given(st.floats(1, 1e4), st.floats(0.1, 1e4), st.floats(0, 1e4), st.floats(0, 1e4))
def test_the_clamped_mean_is_that_of_clamped_numbers(
    mean: float, stdev: float, below: float, above: float
) -> None:
    low, high = mean - below, mean + above
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    from scipy.special import ndtri

    clamped = np.clip(mean + stdev * ndtri(quantiles), low, high)
    assert clamped_mean(mean, stdev, low, high) == pytest.approx(clamped.mean(), abs=1e-3 * stdev + 1e-6)
