"""Prices along lines: where they bend, and what they are at least."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blis_py.latency.fitted import _decode_ns
from blis_py.latency.operators import _Line

LINE = _Line.of(np.array([0.0, 10.0, 30.0, 100.0]), np.array([5.0, 15.0, 25.0, 95.0]))


@pytest.mark.parametrize(
    ("where", "ns"), [(0, 5), (4, 9), (10, 15), (20, 20), (30, 25), (60, 55), (100, 95), (110, 105), (-2, 3)]
)
def test_a_line_is_straight_between_its_points_and_goes_on_beyond_both_ends(where: float, ns: float) -> None:
    assert LINE.value(where) == pytest.approx(ns)
    assert LINE.values(np.array([where])).tolist() == [LINE.value(where)]


@pytest.mark.parametrize(
    ("low", "high", "straight"),
    [(0, 9, True), (1, 10, False), (10, 29, True), (9, 31, False), (30, 500, True), (12, 12, True)],
)
def test_a_stretch_is_straight_if_no_point_lies_in_it(low: float, high: float, straight: bool) -> None:
    assert LINE.straight(low, high) == straight


@pytest.mark.parametrize(
    ("kv_tokens", "max_context", "per_context", "ns"),
    [
        (0, 0, 0.0, 1),  # no time is a nanosecond
        (1, 0, 0.0, 1),
        (10, 0, 0.0, 5),  # 0.5 ns each up to 20 tokens, then 2 ns
        (20, 0, 0.0, 10),
        (21, 0, 0.0, 12),
        (10, 3, 4.0, 17),
        (10, -1, 4.0, 5),  # the longest context is not tracked
    ],
)
def test_decodes_are_priced_by_their_tokens_and_the_longest_context(
    kv_tokens: int, max_context: int, per_context: float, ns: int
) -> None:
    curve = SimpleNamespace(at=[0.0, 20.0], ns=[0.0, 10.0], slopes=[0.5, 2.0])
    decode: Any = SimpleNamespace(curve=curve, per_context=per_context)
    assert _decode_ns(decode, kv_tokens, max_context) == ns
