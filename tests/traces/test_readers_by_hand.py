"""Readers of traces by hand: what is left out, noted, refused, and joined; sessions and names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blis_py.core.bounds import LAST_NS, MAX_TOKENS
from blis_py.errors import InputError
from blis_py.requests.table import Labels, RequestTable
from blis_py.traces import (
    _check,
    _gathered,
    _note_order,
    _part,
    _with_classes,
    _without_answerers,
    is_spec,
    mooncake,
    read_trace,
)
from blis_py.traces.bad_rows import BadRows
from blis_py.traces.compose import (
    _flags,
    _labels,
    _modalities,
    _networks,
    _numbers,
    _session_names,
    _sessions,
    distinct_names,
    scales,
)
from blis_py.traces.from_metrics import _edges, _fitted, _grown, _law, _place, _shortened
from blis_py.traces.kinds import repeated
from blis_py.traces.prometheus import Metrics
from blis_py.traces.reading import Reading
from blis_py.traces.tracev2 import read
from blis_py.traces.tracev2_write import _check_prefixes, _numbered


def requests(rows: int = 3, **columns: Any) -> RequestTable:
    return RequestTable.build(np.arange(rows) * 10, np.full(rows, 5), np.full(rows, 2), **columns)


# -- bad rows and notes ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("concurrency", "kept"), [(1, 1), (8, 8), (0, None), (-1, None), (True, None), (2.0, None), ("8", None)]
)
def test_a_limit_of_a_benchmark_is_a_positive_number(concurrency: Any, kept: int | None) -> None:
    reading = Reading()
    reading.kept_in_flight(concurrency, paced=True)
    assert (reading.concurrency, reading.paced) == (kept, kept is not None)


def test_what_is_left_out_is_noted() -> None:
    reading = Reading()
    for count in (0, 1, 2000):
        reading.left_out(count, "why")
    assert reading.notes == ["1 request was left out: why", "2,000 requests were left out: why"]
    reading.bad.skip = True
    reading.bad.refuse(InputError("x"), 1)
    assert reading.stated()[-1] == "one bad row of the trace was skipped: x"


def test_a_run_in_a_file_is_chosen_by_its_number() -> None:
    file = Path("a.json")
    assert Reading().chosen([7], file, "runs") == 7
    assert Reading(part=1).chosen([7, 8], file, "runs") == 8
    with pytest.raises(InputError, match=r"holds 2 runs.*a.json#0 to a.json#1"):
        Reading().chosen([7, 8], file, "runs")
    with pytest.raises(InputError, match=r"#2.*holds 2 runs.*count from 0"):
        Reading(part=2).chosen([7, 8], file, "runs")


@pytest.mark.parametrize(
    ("arrivals", "note"),
    [
        ([0, 0, 5], None),
        ([0, 5, 4], "arrivals go back in time once; they are played in order of time"),
        ([9, 5, 4], "arrivals go back in time 2 times; they are played in order of time"),
    ],
)
def test_arrivals_that_go_back_are_noted(arrivals: list[int], note: str | None) -> None:
    reading = Reading()
    _note_order(replace(requests(), arrival_ns=np.array(arrivals)), reading)
    assert reading.notes == ([note] if note else [])


def test_models_that_answered_are_noted_and_not_requested() -> None:
    table = requests(model=Labels.of(["b", "a", "b"]))
    reading = Reading()
    assert _without_answerers(table, reading).model.to_list() == [""] * 3
    assert reading.notes == ["it was recorded with a, b; its requests are for any model"]
    requested = Reading(requests_models=True)
    assert _without_answerers(table, requested) is table
    assert requested.notes == []
    plain = requests()
    assert _without_answerers(plain, reading) is plain


def test_a_part_of_a_file_is_a_number_behind_its_name(tmp_path: Path) -> None:
    for name, path, part in (
        ("a.json#1", "a.json", 1),
        ("a.json#x", "a.json#x", None),
        ("a.json", "a.json", None),
    ):
        reading = Reading()
        assert _part(tmp_path / name, reading) == tmp_path / path
        assert reading.part == part
    (tmp_path / "b#2").write_text("")
    reading = Reading()
    assert _part(tmp_path / "b#2", reading) == tmp_path / "b#2"
    assert reading.part is None


def test_a_spec_is_no_recording(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("version: '2'\n")
    (tmp_path / "trace.yaml").write_text("trace_version: 2\n")
    (tmp_path / "a.csv").write_text("")
    names = ("spec.yaml", "trace.yaml", "a.csv", "not there")
    assert [is_spec(str(tmp_path / name)) for name in names] == [True, False, False, True]
    assert not is_spec(str(tmp_path))
    (tmp_path / "chunk-0-trace.csv").write_text("")
    assert is_spec(str(tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((1.0, 1, None), ""),
        ((1.0, None, {"a": 0.0, "b": 0.1}), ""),
        ((0.0, None, None), "--time-scale"),
        ((-1.0, None, None), "--time-scale"),
        ((float("inf"), None, None), "--time-scale"),
        ((1.0, 0, None), "--limit"),
        ((1.0, None, {"a": -0.1, "b": 1}), "share of class 'a'"),
        ((1.0, None, {"a": float("nan")}), "share of class 'a'"),
        ((1.0, None, {"a": 0.0}), "add up to more than 0"),
        ((1.0, None, {}), "add up to more than 0"),
    ],
)
def test_options_of_a_reader_are_checked(options: tuple[Any, ...], message: str) -> None:
    if not message:
        _check(*options)
        return
    with pytest.raises(InputError, match=message):
        _check(*options)


def test_classes_are_drawn_in_their_shares() -> None:
    drawn = _with_classes(requests(4000), {"a": 1.0, "none": 0.0, "b": 3.0}, 7).slo_class.to_list()
    assert drawn.count("none") == 0
    assert drawn.count("a") == pytest.approx(1000, abs=90)
    assert drawn == _with_classes(requests(4000), {"a": 1.0, "none": 0.0, "b": 3.0}, 7).slo_class.to_list()
    assert drawn != _with_classes(requests(4000), {"a": 1.0, "none": 0.0, "b": 3.0}, 8).slo_class.to_list()


# -- single formats ----------------------------------------------------------------------------------------


def lines(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(at_ms: float, output: int = 2, **more: Any) -> dict[str, Any]:
    return {"timestamp": at_ms, "input_length": 5, "output_length": output, **more}


def test_failed_requests_of_mooncake_are_left_out_and_counted(tmp_path: Path) -> None:
    reading = Reading()
    table = mooncake.read(lines(tmp_path, row(0), row(3, 0), row(1.5), row(9, 0)), reading)
    assert table.arrival_ns.tolist() == [0, 1_500_000]
    assert reading.notes[0].startswith("2 requests were left out: ")
    with pytest.raises(InputError, match="no requests in the trace"):
        mooncake.read(lines(tmp_path, row(0, 0)), Reading())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestamp": -1}, "timestamp"),
        ({"timestamp": LAST_NS // 10**6 + 1}, "timestamp"),
        ({"input_length": 0}, "input_length"),
        ({"input_length": MAX_TOKENS + 1}, "input_length"),
        ({"input_length": 5.5}, "input_length"),
        ({"output_length": -1}, "output_length"),
        ({"hash_ids": ["a"]}, "hash_ids"),
        ({"hash_ids": [2**63]}, "hash_ids"),
    ],
)
def test_lines_of_mooncake_are_checked(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mooncake.read(lines(tmp_path, row(0) | change), Reading())


def test_lines_of_mooncake_may_have_the_largest_numbers(tmp_path: Path) -> None:
    rows = (row(LAST_NS // 10**6), row(0) | {"input_length": MAX_TOKENS}, row(0) | {"hash_ids": [2**63 - 1]})
    assert len(mooncake.read(lines(tmp_path, *rows), Reading())) == 3
    named = [row(0, request_id="a"), row(0)]
    with pytest.raises(InputError, match="some lines have it and others do not"):
        mooncake.read(lines(tmp_path, *named), Reading())


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


# -- TraceV2 -----------------------------------------------------------------------------------------------

HEADER = "request_id,arrival_time_us,input_tokens,output_tokens"


def v2(tmp_path: Path, header: str, *rows: str, reading: Reading | None = None) -> RequestTable:
    (tmp_path / "x.csv").write_text("\n".join([f"{HEADER},{header}", *rows]) + "\n")
    (tmp_path / "x.yaml").write_text(
        "trace_version: 2\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n"
    )
    return read(tmp_path / "x.csv", reading or Reading())


def test_a_negative_network_is_none_and_a_deadline_of_minus_one_too(tmp_path: Path) -> None:
    table = v2(
        tmp_path, "network_rtt_ns,network_token_ns,deadline_ns", "0,0,5,2,-7,0.25,-1", "1,3,5,2,,1e99,9"
    )
    assert table.network_ns is not None
    assert table.network_ns.tolist() == [[0.0, 0.25], [0.0, 3.6e12]]
    assert table.deadline_ns.tolist() == [-1, 9]
    with pytest.raises(InputError):
        v2(tmp_path, "deadline_ns", "0,0,5,2,-2")


def test_what_is_bad_without_a_bad_row_is_left_out_too(tmp_path: Path) -> None:
    """The first row lends its group a prefix, and its prompt is too long; without it the next is empty."""
    rows = (f"0,0,{MAX_TOKENS},2,g,10", "1,3,0,2,g,0", "2,4,1,2,g,7", "3,5,1,2,,0")
    reading = Reading(bad=BadRows(skip=True))
    table = v2(tmp_path, "prefix_group,prefix_length", *rows, reading=reading)
    assert table.prompt_tokens.tolist() == [8, 1]
    assert reading.bad.count == 2


def prefixed(groups: list[str], tokens: list[int]) -> RequestTable:
    table = requests(len(groups), prefix_group=Labels.of(groups))
    return replace(table, prefix_tokens=np.array(tokens))


@pytest.mark.parametrize(
    ("groups", "tokens", "message"),
    [
        (["", ""], [0, 0], ""),
        (["", "a"], [0, 4], ""),
        (["a", "a", "b"], [4, 4, 9], ""),
        (["", ""], [0, 4], "without a prefix group"),
        (["", "a"], [4, 4], "without a prefix group"),
        (["a", "a"], [0, 4], "prefixes of different lengths"),
        (["a", "b", "a"], [4, 4, 5], "prefixes of different lengths"),
    ],
)
def test_prefixes_that_cannot_be_written_are_refused(
    groups: list[str], tokens: list[int], message: str
) -> None:
    if not message:
        _check_prefixes(prefixed(groups, tokens), Path("x"))
        return
    with pytest.raises(InputError, match=message):
        _check_prefixes(prefixed(groups, tokens), Path("x"))


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (None, [0, 1]),
        (["request_5", "request_3"], [5, 3]),
        ([f"request_{2**62 - 1}", "request_0"], [2**62 - 1, 0]),
        ([f"request_{2**62}", "request_0"], None),
        (["request_05", "request_3"], None),
        (["5", "request_3"], None),
        (["request_5", "a"], None),
        (["request_-5", "request_3"], None),
    ],
)
def test_names_are_numbers_only_where_all_of_them_are(
    names: list[str] | None, numbers: list[int] | None
) -> None:
    found, differ = _numbered(requests(2, request_id=names))
    assert found.tolist() == (numbers or [0, 1])
    assert differ == (numbers is None)


@pytest.mark.parametrize(
    ("values", "mask"),
    [
        ([1, 2, 3], [False] * 3),
        ([3, 1, 2], [False] * 3),
        ([1, 1, 2, 1], [False, True, False, True]),
        (["a", "b", "a"], [False, False, True]),
        ([], []),
        ([7], [False]),
    ],
)
def test_values_that_were_there_before_are_repeated(values: list[Any], mask: list[bool]) -> None:
    for dtype in (None, object):
        assert repeated(np.array(values, dtype=dtype)).tolist() == mask


# -- joined tables -----------------------------------------------------------------------------------------


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


# -- metrics of a server -----------------------------------------------------------------------------------


def test_windows_have_at_least_their_length() -> None:
    def edges(times: list[float], window_s: float) -> list[int]:
        metrics: Any = SimpleNamespace(times_s=times)
        return _edges(metrics, window_s)

    assert edges([0, 10, 20, 30], 10) == [0, 1, 2, 3]
    assert edges([0, 10, 20, 30], 11) == [0, 2]
    assert edges([5, 6], 60) == [0, 1]
    assert edges([5, 6, 9], 60) == [0, 2]


@pytest.mark.parametrize(
    ("series", "grown"),
    [
        ([3, 5, 9], [0, 2, 6]),
        ([3, 5, 1, 4], [0, 2, 3, 6]),  # it began anew
        ([3, 3], [0, 0]),
        ([np.nan, 3, np.nan, 5], [0, 0, 0, 2]),
    ],
)
def test_a_counter_grows_across_its_resets(series: list[float], grown: list[float]) -> None:
    assert _grown(series).tolist() == grown


def test_step_times_are_fitted_to_windows_with_enough_steps() -> None:
    """A step of 10 ms, 1 ms a decode and 10 µs a token: given back from four windows."""
    steps = np.array([20.0, 20, 40, 100])
    seqs, tokens = np.array([1.0, 5, 2, 8]), np.array([100.0, 0, 300, 50])
    itl = 0.01 + 0.001 * seqs + 1e-5 * tokens
    gpu, notes = _fitted(itl, steps, seqs * steps, tokens * steps)
    assert gpu == pytest.approx({"step": 1e7, "decode_seqs": 1e6, "prefill_tokens": 1e4})
    assert "fitted to 4 windows, with a mean error of 0.0%" in notes[0]
    few = np.array([19.0, 20, 40, 100])
    gpu, notes = _fitted(itl, few, seqs * few, tokens * few)
    assert gpu == {"step": pytest.approx(1e9 * itl.mean())}
    assert notes[0].startswith("3 windows with steps are too few")
    for spoiled in ("itl", "generated"):
        own, generated = itl.copy(), seqs * steps
        if spoiled == "itl":
            own[0] = np.nan
        else:
            generated[0] = 0
        assert _fitted(own, steps, generated, tokens * steps)[1][0].startswith("3 windows")


def histogram(counts: dict[float, float], total: float | None) -> Metrics:
    metrics: Any = SimpleNamespace(
        buckets=lambda *names: {bound: [0, count] for bound, count in counts.items()},
        of=lambda *names: None if total is None else [0, total],
    )
    return metrics  # type: ignore[no-any-return]


def test_lengths_of_a_histogram_lie_where_their_mean_is() -> None:
    """Ten requests from 1 to 11 tokens and ten from 12 to 21: a mean of 11 is the middle."""
    law, mean, notes = _law(histogram({11: 10, 21: 20, np.inf: 20}, 226.5), ("x",), "prompts")
    assert law == {"type": "empirical", "params": law["params"]}
    assert mean == pytest.approx(11.325)
    assert sum(law["params"].values()) == pytest.approx(20)
    assert min(law["params"]) >= 1
    assert max(law["params"]) <= 21
    own = sum(length * weight for length, weight in law["params"].items()) / 20
    assert own == pytest.approx(mean, abs=0.4)
    assert notes == ["prompts lie evenly about 51% of their bucket, so that the mean is right"]
    _, mean, notes = _law(histogram({11: 10, 21: 20, np.inf: 24}, None), ("x",), "prompts")
    assert notes[0] == "prompts beyond the last bucket are at most 42 tokens"
    assert notes[1] == "prompts lie evenly about 50% of their bucket"
    with pytest.raises(InputError, match="histogram of prompts is empty"):
        _law(histogram({11: 0}, 0), ("x",), "prompts")
    alone, mean, _ = _law(histogram({np.inf: 4}, None), ("x",), "prompts")
    assert alone["params"] == {1: pytest.approx(4)}
    assert mean == 1


@pytest.mark.parametrize(("mean", "place"), [(1, 0.0), (0.5, 0.0), (6, 0.5), (11, 1.0), (99, 1.0)])
def test_the_place_in_a_bucket_follows_from_the_mean(mean: float, place: float) -> None:
    one = np.array([4.0])
    assert _place(one, np.array([1.0]), np.array([11.0]), mean) == place
    assert _place(one, np.array([5.0]), np.array([5.0]), mean) == 0.5


def test_a_shared_prefix_shortens_every_length_to_one_token_at_least() -> None:
    law = {"type": "empirical", "params": {3: 1.0, 5: 2.0, 9: 4.0}}
    assert _shortened(law, 4) == {"type": "empirical", "params": {1: 3.0, 5: 4.0}}


def test_empty_cells_have_their_defaults_and_numbers_their_limits(tmp_path: Path) -> None:
    table = v2(
        tmp_path, "round_index,session_id,image_tokens,audio_tokens", "0,0,5,2,,a,,3", "1,1,6,1,1,a,2,"
    )
    assert table.round_index is not None
    assert table.modality_tokens is not None
    assert table.round_index.tolist() == [0, 1]
    assert sorted(map(sum, table.modality_tokens.tolist())) == [2, 3]
    for cells in ("0,0,-1,2", f"0,0,{MAX_TOKENS + 1},2", "0,0,5,-1", "-1,0,5,2"):
        with pytest.raises(InputError):
            v2(tmp_path, "max_tokens", f"{cells},0")
    for value in ("-1", str(MAX_TOKENS + 1)):
        with pytest.raises(InputError, match="max_tokens"):
            v2(tmp_path, "max_tokens", f"0,0,5,2,{value}")
    assert v2(tmp_path, "max_tokens", f"0,0,{MAX_TOKENS},2,{MAX_TOKENS}").max_tokens.tolist() == [MAX_TOKENS]


def test_a_group_shares_a_prefix_of_a_single_token_and_a_row_its_own_content(tmp_path: Path) -> None:
    table = v2(
        tmp_path,
        "prefix_group,prefix_length,content",
        *('0,0,5,2,g,1,""', '1,1,5,2,,0,"[[""x"", 3]]"', '2,2,5,2,,0,""', '3,3,5,2,g,1,""'),
    )
    runs = [table.contents[at] if at >= 0 else () for at in table.content.tolist()]
    assert runs == [(("g", 1),), (("x", 3),), (), (("g", 1),)]
    assert table.prompt_tokens.tolist() == [6, 5, 5, 6]


def test_failed_rows_of_parquet_are_left_out_and_counted(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "t.parquet"
    cells = {"timestamp": [0.0, 1.5, 2.0], "input_tokens": [3, 4, 5], "output_tokens": [1, 0, 2]}
    pyarrow.parquet.write_table(pa.table(cells), path)
    reading = Reading(columns={"arrival": "timestamp", "input": "input_tokens", "output": "output_tokens"})
    table = read_trace(path, reading=reading)
    assert table.arrival_ns.tolist() == [0, 2 * 10**9]
    assert table.prompt_tokens.tolist() == [3, 5]
    assert any(note.startswith("1 request was left out: ") for note in reading.notes)
