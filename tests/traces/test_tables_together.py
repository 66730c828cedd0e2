"""Tables merged, repeated and resampled, against the same done row by row in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from random_tables import drawn
from written_traces import requests

from blis_py.errors import InputError
from blis_py.planning.longer import repeated, resampled
from blis_py.requests.streams import stream
from blis_py.requests.table import Labels, RequestTable
from blis_py.traces.compose import (
    _flags,
    _labels,
    _modalities,
    _networks,
    _numbers,
    _session_names,
    _sessions,
    distinct_names,
    merged,
    scales,
)

Row = dict[str, Any]
CASES = 40


def rows_of(table: RequestTable) -> list[Row]:
    """What each request is, whichever columns the table has."""

    def each(column: Any, unset: Any) -> list[Any]:
        return [unset] * len(table) if column is None else column.tolist()

    def named(column: Labels | None) -> list[str]:
        return [""] * len(table) if column is None else column.to_list()

    columns = {
        **{name: getattr(table, name).tolist() for name in ("arrival_ns", "prompt_tokens", "output_tokens")},
        **{name: getattr(table, name).tolist() for name in ("max_tokens", "deadline_ns", "prefix_tokens")},
        **{name: named(getattr(table, name)) for name in ("slo_class", "tenant", "client", "model")},
        "prefix_group": named(table.prefix_group),
        "texts": [table.contents[index] if index >= 0 else None for index in table.content.tolist()],
        **{name: getattr(table, name).tolist() for name in ("streaming", "slo_target_ns")},
        "id": list(table.ids()),
        "eos": each(table.ends_by_eos, False),
        "constrained": each(table.constrained, False),
        "extra_key": named(table.extra_key),
        "session": table.session_ids(),
        "round": each(table.round_index, 0),
        "modalities": each(table.modality_tokens, [0, 0, 0, 0]),
        "network": each(table.network_ns, [0.0, 0.0]),
        "think_ns": each(table.think_ns, -1),
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def without_sessions(rows: Sequence[Row]) -> list[Row]:
    return [{key: value for key, value in row.items() if key != "session"} for row in rows]


def groups(sessions: Sequence[Any]) -> list[int | None]:
    """Which rows belong together, whatever the sessions are called."""
    known: dict[Any, int] = {}
    return [known.setdefault(name, len(known)) if name else None for name in sessions]


@pytest.mark.parametrize("seed", range(CASES))
def test_merged_tables_are_their_requests_in_order_of_arrival_under_names_of_their_own(seed: int) -> None:
    rng = Random(seed)
    names = ["x", "y", "z"][: rng.choice((2, 3))]
    tables = [drawn(rng, rng.choice((1, 2, 7))) for _ in names]
    expected: list[Row] = []
    for name, table in zip(names, tables, strict=True):
        for row in rows_of(table):
            texts, group = row["texts"], row["prefix_group"]
            row["texts"] = None if texts is None else tuple((f"{name}/{text}", n) for text, n in texts)
            row["prefix_group"] = group and f"{name}/{group}"
            row["id"] = f"{name}/{row['id']}"
            own, is_named = row["session"], table.session_names is not None
            row["session"] = own and (f"{name}/{own}" if is_named else (name, own))
            expected.append(row)
    expected.sort(key=lambda row: row["arrival_ns"])
    found = rows_of(merged(tables, names))
    assert without_sessions(found) == without_sessions(expected)
    assert groups([row["session"] for row in found]) == groups([row["session"] for row in expected])
    for row, own in zip(found, expected, strict=True):
        if isinstance(own["session"], str):
            assert row["session"] == own["session"]


def test_one_table_is_left_as_it_is_and_equal_file_names_are_numbered() -> None:
    table = drawn(Random(0), 3)
    assert merged([table], ["x"]) is table
    assert distinct_names(["a/x.csv", "b/x.json", "y", ".csv"]) == ["x-0", "x-1", "y", "source"]


def permanent(table: RequestTable) -> set[Any]:
    """Texts that recur over more than half of the recording."""
    times: dict[Any, list[int]] = {}
    for row in rows_of(table):
        for text, _ in row["texts"] or ():
            times.setdefault(text, []).append(row["arrival_ns"])
    span = max(table.arrival_ns.tolist()) - min(table.arrival_ns.tolist())
    return {text for text, at in times.items() if max(at) - min(at) > 0.5 * span}


@pytest.mark.parametrize("seed", range(CASES))
def test_a_repeated_table_is_the_same_requests_once_more_each_period(seed: int) -> None:
    rng = Random(seed)
    rows, copies, in_loop = rng.choice((1, 2, 3, 8)), rng.choice((1, 2, 3)), rng.random() < 0.5
    table = drawn(rng, rows)
    span_ns = int(table.arrival_ns[-1] - table.arrival_ns[0])
    found = repeated(table, copies, in_loop=in_loop)
    if copies == 1 or rows == 1 or (span_ns == 0 and not in_loop):
        assert found is table
        return
    period_ns, lasting = round(span_ns * rows / (rows - 1)), permanent(table)
    expected: list[Row] = []
    for copy in range(copies):
        for row in rows_of(table):
            row["arrival_ns"] += copy * period_ns
            row["deadline_ns"] += copy * period_ns if row["deadline_ns"] >= 0 else 0
            behind = f"~{copy}" if copy else ""
            if row["texts"]:
                row["texts"] = tuple((t if t in lasting else f"{t}{behind}", n) for t, n in row["texts"])
            row["id"] = f"{row['id']}{behind}" if table.request_id is not None else f"request_{len(expected)}"
            own = row["session"]
            row["session"] = own and (f"{own}{behind}" if table.session_names is not None else (copy, own))
            expected.append(row)
    shown = rows_of(found)
    assert without_sessions(shown) == without_sessions(expected)
    assert groups([row["session"] for row in shown]) == groups([row["session"] for row in expected])
    if table.session_names is not None:
        assert [row["session"] for row in shown] == [row["session"] for row in expected]


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 9, 23])
def test_a_bootstrap_is_blocks_of_the_recording_with_the_gaps_before_each_request(rows: int) -> None:
    """As long as the root of their number each, drawn until there are enough."""
    table = drawn(Random(rows), rows)
    if rows < 2 or table.session is not None:
        assert resampled(table, 5) is table
        table = RequestTable.build(table.arrival_ns, table.prompt_tokens, table.output_tokens)
    if rows < 2:
        return
    own, length = rows_of(table), max(round(math.sqrt(rows)), 1)
    first = stream(5, "plan", "resample").integers(0, rows - length + 1, math.ceil(rows / length))
    chosen = [start + step for start in first.tolist() for step in range(length)][:rows]
    now: int = own[0]["arrival_ns"]
    expected: list[Row] = []
    for place, index in enumerate(chosen):
        row = dict(own[index])
        now += row["arrival_ns"] - own[index - 1]["arrival_ns"] if index else 0
        patience = row["deadline_ns"] - row["arrival_ns"]
        row["deadline_ns"] = now + patience if row["deadline_ns"] >= 0 and patience >= 0 else -1
        row["id"] = row["id"] if table.request_id is None else f"{row['id']}~{place}"
        expected.append({**row, "arrival_ns": now})
    found = rows_of(resampled(table, 5))
    for row, mine in zip(found, expected, strict=True):
        if table.request_id is None:
            row["id"] = mine["id"] = ""
    assert found == expected


@pytest.mark.parametrize("text", ["1", "1,2,3", "1,0", "0,1", "1,-2", "1,inf", "nan,1", "1,x", ""])
def test_rate_factors_are_one_positive_number_for_each_source(text: str) -> None:
    assert scales("1,0.5", 2) == [1.0, 0.5]
    assert scales(None, 2) == [1.0, 1.0]
    with pytest.raises(InputError, match="give 2 positive numbers: 1,1"):
        scales(text, 2)


def joined(name: str, one: Any, other: Any) -> list[Any]:
    """Two tables, of which the first or the second has such a column."""
    return [
        requests(2, **{name: one}) if one is not None else requests(2),
        requests(1, **({name: other} if other is not None else {})),
    ]


@pytest.mark.parametrize(
    ("join", "name", "one", "other", "whole"),
    [
        (_sessions, "session", np.array([0, -1]), None, [0, -1, -1]),
        (_sessions, "session", None, np.array([0]), [-1, -1, 0]),
        (_sessions, "session", np.array([0, 1]), np.array([0]), [0, 1, 2]),
        (_modalities, "modality_tokens", np.ones((2, 4), int), None, [[1] * 4] * 2 + [[0] * 4]),
        (_networks, "network_ns", None, np.ones((1, 2)), [[0, 0]] * 2 + [[1, 1]]),
    ],
)
def test_a_column_of_one_table_is_unset_in_the_rows_of_the_other(
    join: Callable[[Any], Any], name: str, one: Any, other: Any, whole: list[Any]
) -> None:
    assert join(joined(name, one, other)).tolist() == whole
    assert join(joined(name, None, None)) is None


def test_columns_by_themselves_are_joined_with_defaults() -> None:
    tables = [requests(2), requests(1)]
    flag = np.array([True])
    assert _flags([None, flag], tables).tolist() == [False, False, True]  # type: ignore[union-attr]
    assert _numbers([np.array([4, 5]), None], tables, -1).tolist() == [4, 5, -1]  # type: ignore[union-attr]
    labels = _labels([None, Labels.of(["b"])], tables)
    assert labels is not None
    assert labels.to_list() == ["", "", "b"]
    assert _flags([None, None], tables) is None
    assert _numbers([None, None], tables, 0) is None
    assert _labels([None, None], tables) is None


def test_sessions_without_names_are_numbered_through() -> None:
    named = requests(2, session=np.array([0, 1]), session_names=["a", "b"])
    numbered, none = requests(2, session=np.array([0, 0])), requests(1)
    assert _session_names([named, none, numbered]) == ["a", "b", "session_2"]
    assert _session_names([none, numbered, named]) == ["session_0", "a", "b"]
    assert _session_names([numbered, none]) is None


def test_names_of_sources_differ() -> None:
    assert distinct_names(["x/a.csv", "y/a.jsonl", "b.csv", ".csv"]) == ["a-0", "a-1", "b", "source"]
    assert scales(None, 2) == [1.0, 1.0]
    assert scales("0.5,2", 2) == [0.5, 2.0]
    for text in ("1", "1,2,3", "0,1", "1,-1", "1,inf", "1,x", "nan,1"):
        with pytest.raises(InputError, match="a factor for every source"):
            scales(text, 2)
