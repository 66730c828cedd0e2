"""Kinds of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blis_py.traces.kinds import repeated


@pytest.mark.parametrize(
    ("values", "mask"),
    [
        ([1, 2, 3], [False] * 3),
        ([3, 1, 2], [False] * 3),
        ([1, 1, 2, 1], [False, True, False, True]),
        (["a", "b", "a"], [False, False, True]),
        ([], []),
        ([7], [False]),
    ],
)
def test_values_that_were_there_before_are_repeated(values: list[Any], mask: list[bool]) -> None:
    for dtype in (None, object):
        assert repeated(np.array(values, dtype=dtype)).tolist() == mask
