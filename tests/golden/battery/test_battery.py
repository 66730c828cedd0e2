"""Hundreds of tiny runs come out as they always have: every request, step and figure of each.

Where one is meant to change, `python tests/golden/battery/battery.py` writes down what comes of it now, and
prints what was before: look at every line.
"""

from __future__ import annotations

import pytest
from battery import agrees, expected, outcome, runs
from tolerance import is_near, with_numbers


@pytest.mark.parametrize("name", runs())
def test_a_tiny_run_comes_out_as_it_always_has(name: str) -> None:
    lines, pinned = outcome(name), expected()[name]
    if not agrees(name, lines, pinned):
        assert lines == pinned, runs()[name]


def test_every_run_that_is_pinned_is_there() -> None:
    assert runs().keys() == expected().keys()


def test_a_fit_agrees_within_its_tolerance_and_not_beyond() -> None:
    (line,) = with_numbers("f.yaml", "step: 2000.0\nseqs: 0.5\n")
    assert is_near(line, line.replace("2000", "2001"))
    assert not is_near(line, line.replace("2000", "2010"))
    assert is_near(line, *with_numbers("f.yaml", "step:\n  2000.0\nseqs: 0.5\n"))
    assert not is_near(line, f"{line} 1")
    assert not is_near(line, *with_numbers("f.yaml", "step: 2000.0\nrows: 0.5\n"))
