"""Small parts of plans."""

from __future__ import annotations

from blis_py.planning.report_text import _values


def test_numbers_that_were_tried_are_named_from_the_least_to_the_most_and_words_one_by_one() -> None:
    assert _values([64, 8, 1024]) == "8 to 1,024"
    assert _values(["sjf", "fcfs"]) == "sjf, fcfs"
