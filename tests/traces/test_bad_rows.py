"""Rows that are no good are refused with the way out of it, or left out and counted."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from blis_py.errors import InputError
from blis_py.traces import read_trace
from blis_py.traces.bad_rows import BadRows
from blis_py.traces.reading import Reading

HEADER = "trace_version: 3\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n"
COLUMNS = (
    "request_id,slo_class,prefix_group,prefix_length,streaming,input_tokens,output_tokens,arrival_time_us"
)
GOOD = ["0,batch,g,8,true,10,5,100", "1,,g,8,false,11,6,200", "2,batch,,0,,12,7,300"]
BAD = {
    "a cell that is no number": "3,batch,,0,,ten,7,300",
    "a number out of range": "3,batch,,0,,-1,7,300",
    "a cell too few": "3,batch,,0,,1,7",
    "a cell too many": "3,batch,,0,,1,7,300,9",
    "no truth value": "3,batch,,0,perhaps,1,7,300",
    "an id for the second time": "0,batch,,0,,1,7,300",
    "a time before the beginning": "3,batch,,0,,1,7,-300",
    "an empty prompt": "3,batch,,0,,0,7,300",
    "a time beyond the clock": "3,batch,,0,,1,7,4000000000000000",
}


def trace(folder: Path, rows: list[str]) -> Path:
    (folder / "x.yaml").write_text(HEADER)
    (folder / "x.csv").write_text("\n".join([COLUMNS, *rows]) + "\n")
    return folder / "x.csv"


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_the_rest_of_a_trace_is_what_it_would_be_without_its_bad_row(
    tmp_path: Path, bad: str, place: int
) -> None:
    expected = read_trace(trace(tmp_path, GOOD))
    if bad.startswith("0,") and place == 0:
        place = 1  # the first of two is the good one
    path = trace(tmp_path, [*GOOD[:place], bad, *GOOD[place:]])
    rows = BadRows(skip=True)
    table = read_trace(path, reading=Reading(bad=rows))
    assert np.array_equal(table.prompt_tokens, expected.prompt_tokens)
    assert np.array_equal(table.arrival_ns, expected.arrival_ns)
    assert table.slo_class.to_list() == expected.slo_class.to_list()
    assert list(table.contents) == list(expected.contents)
    assert [table.id_of(row) for row in range(3)] == [expected.id_of(row) for row in range(3)]
    assert rows.count == 1
    assert rows.first is not None
    assert f"x.csv:{place + 2}" in str(rows.first)


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_otherwise_the_error_offers_to_leave_such_rows_out(tmp_path: Path, bad: str) -> None:
    path = trace(tmp_path, [*GOOD, bad])
    with pytest.raises(InputError, match=r"x\.csv:5.*--skip-bad-rows"):
        read_trace(path, reading=Reading(bad=BadRows(fix="leave such rows out with --skip-bad-rows")))


@pytest.mark.slow
def test_many_bad_rows_are_counted_and_the_first_is_quoted(tmp_path: Path) -> None:
    many = [f"{row},,,0,,{'x' if row % 3 == 0 else 5},7,{row}" for row in range(100_000)]
    rows = BadRows(skip=True)
    table = read_trace(trace(tmp_path, many), reading=Reading(bad=rows))
    assert len(table) == 66_666
    assert table.request_id is not None
    assert table.request_id[:3] == ["request_1", "request_2", "request_4"]
    assert rows.note() == (
        f"33,334 bad rows of the trace were skipped; the first: {tmp_path}/x.csv:2: input_tokens: "
        "not a whole number (found 'x')"
    )


def test_the_first_bad_row_is_the_first_in_the_file(tmp_path: Path) -> None:
    """Whatever is wrong with it, and whatever is found earlier."""
    for first in BAD.values():
        for second in BAD.values():
            rows = BadRows(skip=True)
            read_trace(
                trace(tmp_path, [*GOOD, first, second.replace("3", "7", 1)]), reading=Reading(bad=rows)
            )
            assert rows.count == 2
            assert "x.csv:5" in str(rows.first), (first, second)


def test_labels_that_only_bad_rows_have_are_gone(tmp_path: Path) -> None:
    path = trace(tmp_path, [*GOOD, "3,gold,,0,,ten,7,300", "4,silver,,0,,0,7,300"])
    assert set(read_trace(path, reading=Reading(bad=BadRows(skip=True))).slo_class.names) == {"batch", ""}


def test_a_trace_of_bad_rows_is_an_error_all_the_same(tmp_path: Path) -> None:
    for bad in BAD.values():
        path = trace(tmp_path, [bad.replace("0,batch", "x,batch")] * 2)
        with pytest.raises(InputError, match="all rows are bad, the first: "):
            read_trace(path, reading=Reading(bad=BadRows(skip=True)))


def test_the_prefix_of_a_group_is_that_of_its_first_good_row(tmp_path: Path) -> None:
    path = trace(tmp_path, ["9,,g,100,,x,5,0", *GOOD])
    assert read_trace(path, reading=Reading(bad=BadRows(skip=True))).prefix_tokens.tolist() == [8, 8, 0]


@pytest.mark.parametrize("pack", [False, True])
def test_bad_lines_of_mooncake_are_left_out_as_well(tmp_path: Path, pack: bool) -> None:
    good = '{"timestamp": 5, "input_length": 5, "output_length": 5, "request_id": "a"}\n'
    text = good + '{"timestamp": 1\n' + good.replace("5", "6", 1) + good.replace('"a"', '"b"') + "\n"
    path = tmp_path / "m.jsonl"
    path.write_bytes(gzip.compress(text.encode()) if pack else text.encode())
    rows = BadRows(skip=True)
    assert read_trace(path, reading=Reading(bad=rows)).request_id == ["a", "b"]
    assert rows.count == 2  # one is no JSON, one has the id of another
    assert "m.jsonl:2" in str(rows.first)


@pytest.mark.parametrize(
    "stamp", ["yesterday", "2023-02-30 00:00:00", "2023-11-16 18:15:46+02:00", "9999-12-31 00:00:00"]
)
def test_bad_timestamps_are_left_out_as_well(tmp_path: Path, stamp: str) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.1,3,3\n"
    (tmp_path / "a.csv").write_text(f"{text}{stamp},4,4\n2023-11-16 18:15:47.1,5,5\n")
    rows = BadRows(skip=True)
    assert read_trace(tmp_path / "a.csv", reading=Reading(bad=rows)).prompt_tokens.tolist() == [3, 5]
    assert rows.count == 1


FORMATS = Path(__file__).parent / "formats"
BROKEN = {
    "aiperf.jsonl": ['{"x', '{"metadata": {}, "metrics": {"input_sequence_length": {"value": "x"}}}'],
    "azure.csv": ["x", "2023-11-16 18:00:01.5,x,3"],
    "burstgpt.csv": ["x", "5,ChatGPT,x,3,13,Conversation log"],
    "llmservingsim.jsonl": [
        '{"x',
        '{"input_toks": "x", "output_toks": 3, "arrival_time_ns": 0}',
        '{"sub_requests": 3}',
        '{"sub_requests": [{"input_toks": 1, "output_toks": 3, "tool_duration_ns": -1}]}',
    ],
    "mooncake.jsonl": ['{"x', '{"timestamp": 0, "input_length": "x", "output_length": 3}', "[]"],
    "sglang.jsonl": ['{"x'],
    "splitwise.csv": ["x", "9,2,0,6.0,1,x,3"],
}


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, rows in BROKEN.items() for bad in rows])
def test_the_rows_before_and_behind_a_bad_one_are_read_in_every_format(
    tmp_path: Path, name: str, bad: str
) -> None:
    lines, expected = (FORMATS / name).read_text().splitlines(), read_trace(FORMATS / name)
    for place in range(1, len(lines) + 1):
        (tmp_path / name).write_text("\n".join([*lines[:place], bad, *lines[place:]]) + "\n")
        rows = BadRows(skip=True)
        table = read_trace(tmp_path / name, reading=Reading(bad=rows))
        assert table.prompt_tokens.tolist() == expected.prompt_tokens.tolist()
        assert table.arrival_ns.tolist() == expected.arrival_ns.tolist()
        assert rows.count == 1
        assert f"{name}:{place + 1}" in str(rows.first)


def test_the_first_bad_row_is_named_and_all_are_counted() -> None:
    bad = BadRows(skip=True)
    assert bad.note() is None
    one, same, earlier, late = (InputError(name) for name in ("one", "same line", "earlier", "late"))
    bad.refuse(one, 5)
    assert bad.note() == "one bad row of the trace was skipped: one"
    for error, line in ((same, 5), (late, 9)):
        bad.refuse(error, line)
    assert bad.first is one
    bad.refuse(earlier, 4, rows=1000)
    assert bad.first is earlier
    assert bad.note() == "1,003 bad rows of the trace were skipped; the first: earlier"


@pytest.mark.parametrize(
    ("own", "other", "fix"), [(None, None, None), ("a", None, "a"), (None, "b", "b"), ("a", "b", "a, or b")]
)
def test_a_bad_row_is_an_error_with_all_that_may_be_done(
    own: str | None, other: str | None, fix: str | None
) -> None:
    with pytest.raises(InputError) as raised:
        BadRows(fix=other).refuse(InputError("p", file="f", key="k", value=3, fix=own), 1)
    error = raised.value
    assert (error.problem, error.key, error.value, error.fix) == ("p", "k", 3, fix)
