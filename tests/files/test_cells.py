from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_py.files.cells import all_harmless, harmless, meant

FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "'=1", "''+1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_begins_like_a_formula(text: str) -> None:
    assert harmless(text)[0] == "'"
    assert meant(harmless(text)) == text


@pytest.mark.parametrize("text", ["", "gold", "a=1", "'tis", "''", "request_1", "5"])
def test_other_text_is_written_as_it_is(text: str) -> None:
    assert harmless(text) == text
    assert meant(text) == text


@pytest.mark.slow
@given(st.lists(st.text(alphabet="'=+-@\t\ra1") | st.text()))
def test_any_text_is_read_back_as_it_was_written(texts: list[str]) -> None:
    assert [meant(cell) for cell in all_harmless(texts)] == texts
