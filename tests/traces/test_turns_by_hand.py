"""Sessions of traces turn by turn: pauses, conversations, texts; gaps of tokens, and what was observed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blis_py.core.bounds import LAST_NS, MAX_TOKENS
from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.traces import _gathered_turns, _sessions, llmservingsim, mooncake_write
from blis_py.traces.itl import Ragged, read_gaps, write_itl
from blis_py.traces.observed import UNANSWERED, ObservedColumns
from blis_py.traces.reading import Reading

FILE = Path("t.csv")


def turns(
    session: list[int], rounds: list[int] | None = None, prompts: list[int] | None = None, **more: Any
) -> RequestTable:
    """Turns every 100 ns, with answers of 3 tokens."""
    rows = len(session)
    given = np.array(prompts or [10] * rows)
    return RequestTable.build(
        np.arange(rows) * 100,
        given,
        np.full(rows, 3),
        session=np.array(session),
        round_index=None if rounds is None else np.array(rounds),
        **more,
    )


def closed(table: RequestTable, **reading: Any) -> tuple[RequestTable, Reading]:
    options = Reading(session_mode="closed-loop", **reading)
    return _sessions.in_sessions(table, options, FILE, 3), options


def test_at_recorded_times_turns_wait_for_nothing() -> None:
    table = turns([0, 0], think_ns=np.array([-1, 5]))
    for mode, accumulates in ((None, False), ("fixed", True)):
        reading = Reading(session_mode=mode, accumulates=accumulates)
        assert _sessions.in_sessions(table, reading, FILE, 0).think_ns is None
        assert len(reading.notes) == accumulates


def test_what_cannot_be_played_in_turns_is_refused() -> None:
    for table, reading, message in (
        (turns([0]), Reading(session_mode="fixed", only_pauses=True), "pauses, and no times of their own"),
        (
            replace(turns([0]), session=None),
            Reading(session_mode="closed-loop"),
            "which session it belongs to",
        ),
        (turns([0, 0], [0, 2]), Reading(session_mode="closed-loop"), "turn 1 of session .* is missing"),
        (
            turns([0, 0, 0], [0, 1, 1]),
            Reading(session_mode="closed-loop"),
            "turn 2 of session .* or occurs twice",
        ),
        (turns([0, 0], [1, 2]), Reading(session_mode="closed-loop"), "turn 0 of session"),
    ):
        with pytest.raises(InputError, match=message):
            _sessions.in_sessions(table, reading, FILE, 0)


def test_turns_come_in_their_order_and_without_an_index_in_that_of_the_file() -> None:
    found, _ = closed(turns([0, 1, 0, -1, 1, 0]))
    assert found.round_index is not None
    assert found.session is not None
    assert found.round_index.tolist() == [0, 0, 0, 1, 1, 2]
    assert found.session.tolist() == [0, 1, -1, 0, 1, 0]
    mixed, _ = closed(turns([0, 0, 0], [2, 0, 1], prompts=[3, 1, 2]))
    assert mixed.prompt_tokens.tolist() == [1, 2, 3]


def test_pauses_are_the_recorded_ones_or_those_between_arrivals() -> None:
    found, reading = closed(turns([0, 0, 1, 0], think_ns=np.array([-1, 7, -1, -1])))
    assert found.think_ns is not None
    assert sorted(found.think_ns.tolist()) == [0, 0, 0, 7]
    assert reading.notes == []
    found, reading = closed(turns([0, 0, 1, 0]))
    assert found.think_ns is not None
    assert sorted(found.think_ns.tolist()) == [0, 0, 100, 200]
    assert "no pauses between turns" in reading.notes[0]
    answered = np.array([30, 0, 0, 0])
    found, reading = closed(turns([0, 0, 1, 0]), answered_ns=answered)
    assert found.think_ns is not None
    assert sorted(found.think_ns.tolist()) == [0, 0, 70, 200]  # of the second turn no end is known
    assert reading.notes == []
    for more in ({"as_blis": True}, {}):
        nothing = answered if more else np.zeros(4, int)
        found, reading = closed(turns([0, 0, 1, 0]), answered_ns=nothing, **more)
        assert found.think_ns is not None
        assert sorted(found.think_ns.tolist()) == [0, 0, 100, 200]
        assert len(reading.notes) == 1
    late, _ = closed(turns([0, 0]), answered_ns=np.array([500, 0]))
    assert late.think_ns is not None
    assert late.think_ns.tolist() == [0, 0]


def test_pauses_are_drawn_where_that_is_wanted_and_no_month_long() -> None:
    think: Any = SimpleNamespace(draw=lambda rng, count: np.full(count, 9))
    found, _ = closed(turns([0, 0, 1]), think=think)
    assert found.think_ns is not None
    assert sorted(found.think_ns.tolist()) == [0, 0, 9]
    month_ns = 31 * 86_400 * 10**9
    with pytest.raises(InputError, match="more than a month"):
        closed(turns([0, 0], think_ns=np.array([-1, month_ns])))
    paused = _sessions.in_sessions(
        turns([0, 0], think_ns=np.array([-1, -1])), Reading(only_pauses=True), FILE, 0
    )
    assert paused.think_ns is not None
    assert paused.think_ns.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("as_blis", "prompts", "texts"),
    [
        (False, [10, 10 + 3 + 5, 18 + 3 + 4], [10 + 2, 18 + 2, 25 + 2]),
        (True, [10, 10 + 2 + 5, 17 + 2 + 4], [10 + 2, 17 + 2, 23 + 2]),
    ],
)
def test_a_turn_repeats_the_conversation_before_it(
    as_blis: bool, prompts: list[int], texts: list[int]
) -> None:
    """BLIS leaves out the last token of each answer; shared is all but that one."""
    table = turns([0, 1, 0, 0], [0, 0, 1, 2], [10, 6, 5, 4])
    found, _ = closed(table, accumulates=True, as_blis=as_blis)
    assert found.session is not None
    rows = np.flatnonzero(found.session == 0)
    assert found.prompt_tokens[rows].tolist() == prompts
    runs = [found.contents[found.content[row]] for row in rows.tolist()]
    assert runs == [(("conversation 0", tokens),) for tokens in texts]
    (other,) = np.flatnonzero(found.session == 1).tolist()
    assert found.prompt_tokens[other] == 6
    assert found.contents[found.content[other]] == (("conversation 1", 8),)


def test_answers_are_as_long_as_their_limit_and_a_prefix_comes_once() -> None:
    table = turns([0, 0], [0, 1], [10, 12], max_tokens=np.array([2, 0]))
    table = replace(
        table,
        prefix_tokens=np.array([4, 6]),
        content=np.array([0, -1]),
        contents=((("system", 4),),),
    )
    found, _ = closed(table, accumulates=True)
    assert found.prompt_tokens.tolist() == [10, 4 + 6 + 2 + 6]
    assert found.prefix_tokens.tolist() == [4, 4]
    assert [found.contents[at] for at in found.content.tolist()] == [
        (("system", 4), ("conversation 0", 6 + 2 - 1)),
        (("system", 4), ("conversation 0", 6 + 2 + 6 + 3 - 1)),
    ]
    with pytest.raises(InputError, match="a conversation that is far too long"):
        closed(turns([0, 0], [0, 1], [MAX_TOKENS - 3, 1]), accumulates=True)
    closed(turns([0, 0], [0, 1], [MAX_TOKENS - 4, 1]), accumulates=True)


def test_turns_are_gathered_by_their_sessions() -> None:
    gathered, reading = _gathered_turns.GatheredTurns(), Reading()
    table = RequestTable.build(np.arange(4), np.ones(4, int), np.ones(4, int))
    assert gathered.of(table, reading) is table
    for session, at_ns in (("a", 7), (5, 9), ("a", 50), (None, 3)):
        gathered.begins(session, at_ns)
    assert [gathered.known(each) for each in ("a", 5, "b", None)] == [True, True, False, False]
    assert [gathered.start_ns(each) for each in ("a", 5, "b", None)] == [7, 9, 0, 0]
    for session, think_ns, has_time in (("a", 0, True), (5, 0, True), ("a", 4, False), (None, 0, True)):
        gathered.add(session, think_ns, has_time)
    found = gathered.of(table, reading)
    assert reading.only_pauses
    assert found.session_names == ["a", "5"]
    assert found.session is not None
    assert found.round_index is not None
    assert found.think_ns is not None
    assert (found.session.tolist(), found.round_index.tolist()) == ([0, 1, 0, -1], [0, 0, 1, 0])
    assert found.think_ns.tolist() == [0, 0, 4, 0]


@pytest.mark.parametrize(
    ("name", "fits"), [(None, True), ("a", True), (3, True), ("", False), (True, False), (1.5, False)]
)
def test_a_session_is_named_by_a_text_or_a_number(name: Any, fits: bool) -> None:
    if fits:
        _gathered_turns.check_session(name, "x")
        return
    with pytest.raises(InputError, match="a text or a whole number"):
        _gathered_turns.check_session(name, "x")


# -- formats -----------------------------------------------------------------------------------------------


def simulated(tmp_path: Path, *rows: Any) -> tuple[RequestTable, Reading]:
    path, reading = tmp_path / "t.jsonl", Reading()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return llmservingsim.read(path, reading), reading


START, INPUT, OUTPUT = llmservingsim.KEYS
SESSION, TOOL = llmservingsim.SESSION, llmservingsim.TOOL


def test_tools_between_turns_are_pauses_also_behind_a_turn_that_is_left_out(tmp_path: Path) -> None:
    sent = [
        {INPUT: 5, OUTPUT: 2, TOOL: 30},
        {INPUT: 6, OUTPUT: 0, TOOL: 4},
        {INPUT: 7, OUTPUT: 2},
        {INPUT: 8, OUTPUT: 2, TOOL: LAST_NS},
    ]
    table, reading = simulated(
        tmp_path, {START: 100, SESSION: sent, "session_id": "s"}, {START: 150, INPUT: 9, OUTPUT: 1}
    )
    assert table.prompt_tokens.tolist() == [5, 7, 8, 9]
    assert table.think_ns is not None
    assert table.session is not None
    assert table.think_ns.tolist() == [0, 34, 0, 0]
    assert table.session.tolist() == [0, 0, 0, -1]
    assert table.arrival_ns.tolist() == [0, 0, 0, 50]
    assert reading.only_pauses


@pytest.mark.parametrize(
    "row",
    [
        {START: 0, SESSION: []},
        {START: 0, SESSION: [3]},
        {START: 0, SESSION: {}},
        {START: 0, SESSION: [{INPUT: 1, OUTPUT: 1, TOOL: -1}]},
        {START: 0, SESSION: [{INPUT: 1, OUTPUT: 1, TOOL: LAST_NS + 1}]},
        {START: 0, SESSION: [{INPUT: 1, OUTPUT: 1, TOOL: 1.0}]},
        {START: 0, SESSION: [{INPUT: 1, OUTPUT: 1}], "session_id": ""},
    ],
)
def test_bad_sessions_are_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        simulated(tmp_path, row)


def test_prompts_share_the_blocks_that_begin_alike(tmp_path: Path) -> None:
    size = llmservingsim.BLOCK_TOKENS
    same = list(range(size))

    def row(ids: list[int], tokens: int | None = None) -> dict[str, Any]:
        return {START: 0, INPUT: tokens or len(ids), OUTPUT: 1, "input_tok_ids": ids}

    table, _ = simulated(
        tmp_path, row(same), row([*same, 5]), row([1, *same]), row(same, size + 1), row([*same[:-1], 9])
    )
    runs = [table.contents[at] if at >= 0 else () for at in table.content.tolist()]
    assert runs == [((0, size),), ((0, size),), (), (), ()]


def test_blocks_are_alike_whose_beginnings_are() -> None:
    size = mooncake_write.BLOCK_TOKENS
    blocks = mooncake_write._Blocks()

    def ids(*runs: tuple[str, int], prompt: int) -> list[int]:
        return list(blocks.of(runs, prompt))

    assert ids(("a", 2 * size), prompt=2 * size + 1) == [0, 1, 2]
    assert ids(("a", 2 * size), prompt=2 * size) == [0, 1]
    assert ids(("a", size), ("b", size), prompt=2 * size) == [0, 3]
    assert ids(("a", size + 1), prompt=size + 1) == [0, 4]
    assert ids(("a", size + 1), prompt=size + 2) == [0, 5]
    assert ids(prompt=1) == [6]
    assert ids(("a", 5 * size), prompt=size) == [0]
    assert mooncake_write._first_tokens((("a", 3), ("b", 4), ("c", 1)), 5) == (("a", 3), ("b", 2))
    assert mooncake_write._first_tokens((("a", 3), ("b", 4)), 3) == (("a", 3),)
    assert mooncake_write._first_tokens((("a", 3), ("b", 4)), 4) == (("a", 3), ("b", 1))
    assert [mooncake_write._in_ms(each) for each in (0, 2_000_000, 2_500_000, 1)] == [0, 2, 2.5, 1e-6]


# -- gaps and observations ---------------------------------------------------------------------------------


def test_gaps_are_read_back_for_the_requests_given(tmp_path: Path) -> None:
    path = tmp_path / "itl.csv"
    times_us = [10, 30, 30, 5, 7, 9]
    write_itl(path, np.array([4, 2, 9]), np.array([3, 1, 2]), np.array(times_us) * 1000 + 999)
    gaps = read_gaps(path, np.array([9, 7, 4, 2]))
    assert gaps.counts.tolist() == [1, 0, 2, 0]
    assert gaps.values.tolist() == pytest.approx([2e-6, 20e-6, 0.0])
    assert gaps.means().tolist() == pytest.approx([2e-6, np.nan, 10e-6, np.nan], nan_ok=True)
    assert gaps.take(np.array([2, 0])).values.tolist() == pytest.approx([20e-6, 0.0, 2e-6])
    assert Ragged(np.zeros(0), np.zeros(0, np.int64)).means().tolist() == []


@pytest.mark.parametrize("rows", ["1,0,5\n1,0,5\n", "1,0,5\n1,1,4\n"])
def test_a_token_comes_once_and_not_before_the_one_in_front(tmp_path: Path, rows: str) -> None:
    path = tmp_path / "itl.csv"
    write_itl(path, np.array([], int), np.array([], int), np.array([], int))
    path.write_text(path.read_text() + rows)
    with pytest.raises(InputError, match="a token twice, or before"):
        read_gaps(path, np.array([1]))


def test_requests_are_as_they_were_sent_and_their_patience_moves_with_them() -> None:
    table = turns([0, 0, 0, 0], deadline_ns=np.array([-1, 150, 250, 0]))
    seen = ObservedColumns(table)
    for row, at_ns in ((0, 0), (1, 120), (3, 0)):
        seen.sent(row, at_ns)
    sent = seen.sent_table()
    assert sent.arrival_ns.tolist() == [0, 120, 200, 0]
    assert sent.deadline_ns.tolist() == [-1, 170, 250, -300]
    seen.token(0, 5)
    seen.token(0, 9)
    seen.ended(0, 10, ("ok", "", "stop"))
    seen.ended(1, 10, ("error", "500: broken", ""))
    assert seen.requests[0].token_ns == [5, 9]
    assert seen.requests[3].end == UNANSWERED
    assert seen.counts() == {"injected": 4, "500": 1, "no end seen": 1, "not sent": 1, "ok": 1}
