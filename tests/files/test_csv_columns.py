"""Columns as CSV are what pandas writes of the same rows."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_py.files.csv_columns import columns_of, csv_text

NUMBERS = st.integers(-(10**15), 10**15) | st.floats(allow_infinity=False, allow_nan=False) | st.none()
CELLS = st.one_of(
    st.lists(st.integers(-(10**15), 10**15), min_size=3, max_size=3),
    st.lists(NUMBERS, min_size=3, max_size=3),
    st.lists(st.booleans() | st.none(), min_size=3, max_size=3),
    st.lists(st.text('a,"\n é', max_size=4) | st.none(), min_size=3, max_size=3),
    st.lists(st.integers(0, 9) | st.sampled_from(["auto", "fp8"]), min_size=3, max_size=3),
)


@given(st.lists(CELLS, min_size=1, max_size=4))
def test_a_table_is_the_same_csv_as_that_of_a_data_frame(columns: list[list[Any]]) -> None:
    rows = [{f"c{place}": column[row] for place, column in enumerate(columns)} for row in range(3)]
    assert csv_text(columns_of(rows)) == pd.DataFrame(rows).to_csv(index=False)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([], "\n"),
        ([{"a": 1}, {"b": "x"}, {"a": 2}], "a,b\n1.0,\n,x\n2.0,\n"),
        ([{"a": float("nan"), "b": True}, {"a": 1e-5, "b": None}], "a,b\n,True\n1e-05,\n"),
    ],
)
def test_a_cell_is_empty_where_a_value_is_missing(rows: list[dict[str, Any]], text: str) -> None:
    assert csv_text(columns_of(rows)) == text
