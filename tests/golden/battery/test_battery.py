"""Hundreds of tiny runs come out as they always have: every request, step and figure of each.

Where one is meant to change, `python tests/golden/battery/battery.py` writes down what comes of it now, and
prints what was before: look at every line.
"""

from __future__ import annotations

import pytest
from battery import expected, outcome, runs


@pytest.mark.parametrize("name", runs())
def test_a_tiny_run_comes_out_as_it_always_has(name: str) -> None:
    assert outcome(name) == expected()[name], runs()[name]


def test_every_run_that_is_pinned_is_there() -> None:
    assert runs().keys() == expected().keys()
