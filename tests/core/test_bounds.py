from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_py.core.bounds import LAST_NS, check_count, clock_ns, in_seconds
from blis_py.core.request import NEVER_NS
from blis_py.errors import InputError


def test_a_century_fits_into_the_clock_and_two_of_them_into_64_bits() -> None:
    assert round(100 * 365.25 * 86_400) * 10**9 == LAST_NS
    assert LAST_NS < NEVER_NS
    assert 2 * LAST_NS < 2**63


@pytest.mark.parametrize(
    ("value", "unit_ns", "problem"),
    [
        (-1, 1, "must not be negative"),
        (-1e-3, 10**9, "must not be negative"),
        (1e30, 1, "more than a century"),
        (2**70, 1, "more than a century"),
        (101 * 366 * 86_400, 10**9, "more than a century"),
        (10**4000, 1, "more than a century"),
        (math.inf, 1, "finite"),
        (math.nan, 1, "finite"),
        (1e308, 10**9, "finite"),
    ],
    ids=lambda value: f"{value:.3g}" if isinstance(value, float) else None,
)
def test_a_time_out_of_range_names_file_key_and_value(value: float, unit_ns: int, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        clock_ns(value, unit_ns, key="clients[0].timeout", file="spec.yaml")
    text = str(caught.value)
    assert text.startswith("spec.yaml: clients[0].timeout: ")
    assert problem in text
    assert "(found " in text


@given(st.integers(0, LAST_NS // 1000))
def test_whole_times_are_converted_exactly(value_us: int) -> None:
    assert clock_ns(value_us, 1000, key="x") == value_us * 1000


@pytest.mark.parametrize("value", [0, 11, 2**70])
def test_a_count_out_of_range_names_key_and_value(value: int) -> None:
    with pytest.raises(InputError, match="--intervals: must be at"):
        check_count(value, least=1, most=10, key="--intervals")


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [(60_000, "0.00006 s"), (0, "0 s"), (90 * 10**9, "90 s"), (1_500_000_000, "1.5 s"), (10**13, "10,000 s")],
)
def test_times_are_written_in_seconds_without_exponents(time_ns: int, text: str) -> None:
    assert in_seconds(time_ns) == text
