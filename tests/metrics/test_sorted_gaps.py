"""Gaps are added up alike whether they are whole microseconds, which are counted, or not."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from blis_py.metrics.itl import _sorted


@pytest.mark.parametrize("unit", [1, 1000])
@pytest.mark.parametrize("pauses", [0, 3, 40])
def test_numbers_are_added_up_by_value_in_order(unit: int, pauses: int) -> None:
    rng = Random(pauses)
    values = [unit * rng.randrange(7, 60) for _ in range(100)] + [
        unit * (10**6 + n % 2) for n in range(pauses)
    ]
    rng.shuffle(values)
    numbers = [rng.randrange(5) for _ in values]
    expected: dict[int, int] = {}
    for value, number in zip(values, numbers, strict=True):
        expected[value] = expected.get(value, 0) + number
    distinct, sums = _sorted(np.array(values))
    found: dict[int, int] = {}
    for value, number in zip(distinct.tolist(), sums(np.array(numbers)).tolist(), strict=True):
        found[value] = found.get(value, 0) + number
    assert found == expected
    assert distinct.tolist() == sorted(distinct.tolist())
