"""Spans of OpenTelemetry: sessions, turns and counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blis_py.errors import InputError
from blis_py.traces.otel import _Call, _content, _count, _Session, _sessions, _think_ns, read_spans


def call(begin_ns: int, end_ns: int, prompt: int = 10, output: int = 5, session: str = "s") -> _Call:
    return _Call(begin_ns, end_ns, session, prompt, output, "", 0)


def test_a_call_follows_the_session_that_ended_last_before_it() -> None:
    calls = [call(0, 10), call(5, 8), call(8, 20), call(10, 30), call(15, 16, session="t"), call(40, 50)]
    sessions = _sessions(calls)
    assert [(one.name, [each.begin_ns for each in one.calls]) for one in sessions] == [
        ("s", [0, 10, 40]),
        ("s/1", [5, 8]),
        ("t", [15]),
    ]
    assert [_think_ns(sessions[0], turn) for turn in range(3)] == [-1, 0, 10]


def test_a_turn_begins_with_the_turns_before_it_unless_its_context_was_cut() -> None:
    one = _Session("s", [call(0, 1, 10, 5), call(2, 3, 15, 5), call(4, 5, 19, 5), call(6, 7, 40, 2)])
    assert _content(one, 0) == (("s#0", 15),)
    assert _content(one, 1) == (("s#0", 15), ("s#1", 5))
    assert _content(one, 2) == (("s#2", 24),)
    assert _content(one, 3) == (("s#2", 24), ("s#3", 18))


@pytest.mark.parametrize(
    ("attributes", "count"),
    [
        *(({"b": 4}, 4), ({"a": "7", "b": 4}, 7), ({"a": True, "b": 4}, 4), ({"a": "x", "b": 4.9}, 4)),
        *(({"a": float("inf")}, None), ({}, None), ({"a": 0}, 0)),
    ],
)
def test_a_count_is_the_first_number_of_its_names(attributes: dict[str, Any], count: int | None) -> None:
    assert _count(Path("x"), attributes, ("a", "b")) == count


def test_a_span_of_one_line_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("{\n")
    with pytest.raises(InputError):
        read_spans(tmp_path / "s.json")
