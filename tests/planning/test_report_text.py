"""Words of a plan's report: lists of values and beginnings of sentences."""

from __future__ import annotations

import pytest

from blis_py.planning.report_text import _first_upper, _values


def test_values_that_are_not_all_numbers_are_listed() -> None:
    assert _values([64, "auto", 8]) == "64, auto, 8"


def test_numbers_that_were_tried_are_named_from_the_least_to_the_most_and_words_one_by_one() -> None:
    assert _values([64, 8, 1024]) == "8 to 1,024"
    assert _values(["sjf", "fcfs"]) == "sjf, fcfs"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("more GPUs", "More GPUs"), ("max_num_seqs at 64", "max_num_seqs at 64"), ("a_b", "a_b"), ("", "")],
)
def test_a_sentence_begins_with_a_capital_unless_with_the_name_of_a_setting(text: str, sentence: str) -> None:
    assert _first_upper(text) == sentence
    assert _first_upper("set max_num_seqs") == "Set max_num_seqs"
