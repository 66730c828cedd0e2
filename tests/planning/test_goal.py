"""Shares and least figures of a goal."""

from __future__ import annotations

import pytest

from blis_py.errors import InputError
from blis_py.planning.goal import parse_at_least, parse_share


@pytest.mark.parametrize(
    ("text", "share"), [("0", 0.0), ("1", 1.0), ("0.5", 0.5), ("99%", 0.99), ("100%", 1.0)]
)
def test_a_share_is_a_fraction_or_a_percentage(text: str, share: float) -> None:
    assert parse_share(text, key="k") == pytest.approx(share)


@pytest.mark.parametrize("text", ["-0.1", "95", "100", "101%", "x", "", "nan"])
def test_other_shares_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_share(text, key="k")


@pytest.mark.parametrize("text", ["requests_per_s=0", "requests_per_s=inf", "requests_per_s=-1", "nosuch=3"])
def test_a_least_figure_is_positive(text: str) -> None:
    assert parse_at_least(["requests_per_s=0.5,goodput_per_s=2"]) == {
        "requests_per_s": 0.5,
        "goodput_per_s": 2.0,
    }
    with pytest.raises(InputError):
        parse_at_least([text])
