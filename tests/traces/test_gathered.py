"""Requests gathered row by row, with times from the earliest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blis_py.core.bounds import LAST_NS, MAX_TOKENS
from blis_py.errors import InputError
from blis_py.traces import _gathered
from blis_py.traces.bad_rows import BadRows
from blis_py.traces.reading import Reading


def gathered(*added: tuple[Any, ...], skip: bool = True) -> tuple[_gathered.Gathered, Reading]:
    reading = Reading(bad=BadRows(skip=skip))
    found = _gathered.Gathered(Path("f"), reading)
    for number, (arrival_ns, prompt, output) in enumerate(added):
        found.add(f"at {number}", number, arrival_ns, prompt, output)
    return found, reading


def test_requests_are_gathered_with_times_from_the_earliest() -> None:
    found, reading = gathered((30, 1, 1), (10.4, 2.0, 3), (None, MAX_TOKENS, MAX_TOKENS), (50, 1, 0))
    table = found.table()
    assert table.arrival_ns.tolist() == [30, 10, 0]
    assert table.prompt_tokens.tolist() == [1, 2, MAX_TOKENS]
    assert reading.notes[0].startswith("1 request was left out: ")
    assert reading.bad.count == 0


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        ((-1, 1, 1), "not a time"),
        (("1", 1, 1), "not a time"),
        ((1, 0, 1), "must be at least 1"),
        ((1, 1, -1), "must be at least 0"),
        ((1, MAX_TOKENS + 1, 1), "is too large"),
        ((1, 1.5, 1), "not a whole number"),
        ((1, True, 1), "not a whole number"),
        ((1, 1e300, 1), "not a whole number"),
    ],
)
def test_bad_requests_are_not_gathered(added: tuple[Any, ...], problem: str) -> None:
    found, reading = gathered(added)
    assert len(found) == 0
    assert reading.bad.first is not None
    assert reading.bad.first.problem == problem
    with pytest.raises(InputError, match=f"no requests in it: all are bad, the first: {problem}"):
        found.table()
    with pytest.raises(InputError, match=problem):
        gathered(added, skip=False)


def test_requests_may_be_a_century_apart_and_no_more() -> None:
    assert len(gathered((0, 1, 1), (LAST_NS, 1, 1))[0].table()) == 2
    with pytest.raises(InputError, match="more than a century apart"):
        gathered((0, 1, 1), (LAST_NS + 1000, 1, 1))[0].table()
    with pytest.raises(InputError, match="no requests in it"):
        gathered()[0].table()
    assert (_gathered.seconds(1.5), _gathered.seconds("x"), _gathered.seconds(None)) == (1.5e9, "x", None)
