"""Logs of an engine's steps by hand: files and what is wrong with them, samples, traces of single steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blis_py.errors import InputError
from blis_py.traces import steplog
from blis_py.traces.otel import _Call, _content, _count, _Session, _sessions, _think_ns, read_spans
from blis_py.traces.perfetto import StepTrace
from blis_py.traces.samples import (
    StepSamples,
    _busy,
    joined,
    medians,
    read_samples,
    samples_from,
    samples_of,
    total_ns,
    write_samples,
)
from blis_py.traces.steplog import REQUEST_KINDS, STEP_KINDS, StepLog, read_step_log, write_step_log

BLANK = {"text": "eager", "ints": (), "int": 0, "float": 0.0}


def log_of(
    steps: list[tuple[int, int]], requests: Sequence[tuple[int, int]] = ((0, 10**6),), **columns: Any
) -> StepLog:
    """Steps by start and end, requests by arrival and finish."""
    table: dict[str, list[Any]] = {name: [BLANK[kind]] * len(steps) for name, kind in STEP_KINDS.items()}
    table["step"] = list(range(len(steps)))
    table["start_ns"], table["end_ns"] = [a for a, _ in steps], [b for _, b in steps]
    rows: dict[str, list[Any]] = {name: [BLANK[kind]] * len(requests) for name, kind in REQUEST_KINDS.items()}
    rows["number"], rows["id"] = list(range(len(requests))), [f"r{n}" for n in range(len(requests))]
    rows["arrival_ns"], rows["finish_ns"] = [a for a, _ in requests], [b for _, b in requests]
    rows["prompt_tokens"] = [1] * len(requests)
    return StepLog({"schema": 1, "device": "cuda:0"}, table | columns, rows)


# -- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_a_log_is_read_as_it_was_written(tmp_path: Path, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    lists: list[Any] = [(1, 2), (1, 2), (), (), (3,)]
    log = log_of([(i, i + 1) for i in range(5)], decode_ids=lists, admitted_ids=lists, gpu_ns=[2**62] * 5)
    write_step_log(log, tmp_path / f"s.{ending}")
    again = read_step_log(tmp_path / f"s.{ending}")
    assert again.steps["decode_ids"] == lists
    assert again.steps == log.steps
    assert again.requests == log.requests
    assert again.meta == log.meta
    assert (tmp_path / f"s.requests.{ending}").exists()


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sample_is_smaller_than_half_of_the_largest_number(tmp_path: Path, sign: int) -> None:
    for beyond in (False, True):
        shapes = [1, sign * (2**62 - 1 + beyond)]
        write_samples(samples_from({}, {"shape": shapes}, 2), tmp_path / "s.csv")
        if not beyond:
            assert read_samples(tmp_path / "s.csv")["shape"].tolist() == shapes
            continue
        with pytest.raises(InputError, match="shape: not a number") as caught:
            read_samples(tmp_path / "s.csv")
        assert caught.value.value == str(shapes[1])


def test_the_same_decodes_as_before_are_written_once(tmp_path: Path) -> None:
    same: list[Any] = [(), (), (7,), (7,), ()]
    write_step_log(log_of([(i, i + 1) for i in range(5)], decode_ids=same), tmp_path / "s.csv")
    header, *rows = [line.split(",") for line in (tmp_path / "s.csv").read_text().splitlines()[1:]]
    place = header.index("decode_ids")
    assert [row[place] for row in rows] == ["", "=", "7", "=", ""]


@pytest.mark.parametrize(
    ("number", "fits"), [(2**62, True), (2**62 + 1, False), (-(2**62), True), (-(2**62) - 1, False)]
)
def test_numbers_of_a_log_have_a_largest_size(tmp_path: Path, number: int, fits: bool) -> None:
    file = tmp_path / "s.csv"
    write_step_log(log_of([(0, 1)], gpu_ns=[number]), file)
    if fits:
        assert read_step_log(file).steps["gpu_ns"] == [number]
        assert steplog._of_parquet(file, "gpu_ns", "int", number) == number
        return
    with pytest.raises(InputError, match="not what belongs here"):
        read_step_log(file)
    with pytest.raises(InputError, match="not what belongs here"):
        steplog._of_parquet(file, "gpu_ns", "int", number)


@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [
        *(("ints", None, True), ("ints", [1, 2], True), ("ints", [1, "x"], False), ("ints", 1, False)),
        *(("text", "a", True), ("text", 1, False), ("float", 1.5, True), ("float", 1, False)),
        *(("int", True, False), ("int", None, False), ("float", 1e300, True)),
    ],
)
def test_values_of_parquet_have_the_kind_of_their_column(kind: str, value: Any, fits: bool) -> None:
    if fits:
        expected = tuple(value) if isinstance(value, list) else value
        assert steplog._of_parquet(Path("x"), "n", kind, value) == expected
        return
    with pytest.raises(InputError, match="not what belongs here"):
        steplog._of_parquet(Path("x"), "n", kind, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"number": [0, 0]}, "two requests have it"),
        ({"id": ["a", "a"]}, "two requests have it"),
        ({"prompt_tokens": [1, 0]}, "prompt_tokens"),
        ({"output_tokens": [0, -1]}, "output_tokens"),
        ({"max_tokens": [0, -1]}, "max_tokens"),
        ({"block_keys": [(), None]}, "a list is missing"),
    ],
)
def test_requests_of_a_log_are_checked(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    log = log_of([(0, 1)], [(0, 1), (0, 1)])
    write_step_log(replace(log, requests=log.requests | change), tmp_path / "s.csv")
    with pytest.raises(InputError, match=message):
        read_step_log(tmp_path / "s.csv")


def test_a_prompt_may_be_empty_where_answers_come_in_blocks(tmp_path: Path) -> None:
    log = log_of([(0, 1)])
    blocks = log.requests | {"prompt_tokens": [0], "block_rounds": [(2, 3)]}
    write_step_log(replace(log, requests=blocks), tmp_path / "s.csv")
    assert read_step_log(tmp_path / "s.csv").requests["block_rounds"] == [(2, 3)]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text.replace('"schema": 1', '"schema": 2', 1), "another schema"),
        (lambda text: text.replace("# blis-py step log ", "# something ", 1), "not a step log"),
        (lambda text: text.replace("gpu_ns", "gpu_s", 1), "gpu_ns"),
        (lambda text: text.rstrip("\n") + ",1\n", r"s.csv:3: a row of \d+ cells under \d+ columns"),
        (lambda text: text.replace("\n0,0,", "\n0,zero,", 1), r"s.csv:3: start_ns"),
    ],
)
def test_what_is_no_log_is_refused_with_its_line(tmp_path: Path, spoil: Any, message: str) -> None:
    file = tmp_path / "s.csv"
    write_step_log(log_of([(0, 1)]), file)
    file.write_text(spoil(file.read_text()))
    with pytest.raises(InputError, match=message):
        read_step_log(file)


def test_a_round_begins_a_batch_if_it_is_the_first_of_it() -> None:
    log = log_of([(i, i + 1) for i in range(5)], batch=[3, 3, 4, 5, 5])
    assert [log.begins_batch(index) for index in range(5)] == [1, 0, 1, 1, 0]
    assert len(log) == 5


# -- samples -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("life", "busy"),
    [
        ((0, 100), [True, True]),
        ((0, 25), [True, False]),
        ((0, 20), [True, False]),
        ((0, 19), [False, False]),
        ((10, 40), [True, True]),  # it came at the end of the first step
        ((11, 40), [False, True]),
        ((30, 40), [False, True]),
        ((31, 90), [False, False]),
        ((5, -1), [True, True]),
        ((5, 0), [False, False]),
        ((41, 99), [False, False]),
    ],
)
def test_a_gap_is_busy_if_a_request_was_there_throughout(life: tuple[int, int], busy: list[bool]) -> None:
    """Steps from 0 to 10, 20 to 30 and 40 to 50."""
    log = log_of([(0, 10), (20, 30), (40, 50)], [life])
    starts, ends = np.array([20, 40]), np.array([10, 30])
    assert _busy(log, ends, starts).tolist() == busy
    assert total_ns(log).tolist() == [20 if busy[0] else 10, 20 if busy[1] else 10, 10]


def test_two_requests_that_relieve_each_other_leave_a_gap() -> None:
    log = log_of([(0, 10), (20, 30)], [(0, 15), (15, 30)])
    assert total_ns(log).tolist() == [10, 10]
    both = log_of([(0, 10), (20, 30), (40, 50)], [(0, 25), (5, 45)])
    assert total_ns(both).tolist() == [20, 20, 10]


def test_a_single_step_and_none_are_samples() -> None:
    assert total_ns(log_of([(3, 10)])).tolist() == [7]
    assert len(samples_of(log_of([]), "x")) == 0
    assert samples_of(log_of([(3, 10)]), "x")["total_ns"].tolist() == [7]


def test_samples_leave_out_failed_steps_and_have_numbers_of_their_own() -> None:
    log = log_of([(0, 10), (10, 30), (30, 60)], gpu_ns=[4, 5, 6], failed=[0, 1, 0])
    found = samples_of(log, "run")
    assert found["shape"].tolist() == [0, 2]
    assert found["total_ns"].tolist() == [10, 30]
    assert found["host_ns"].tolist() == [6, 24]
    assert found["source"].tolist() == ["run", "run"]
    assert found.meta == {"schema": 1, "device": "cuda:0", "device_kind": "cuda"}


def test_the_meta_of_samples_is_what_is_known_of_the_engine() -> None:
    log = log_of([(0, 1)])
    log.meta.update(device="cpu", torch="2", seed=3, scheduler={"block_size": 16, "max_num_seqs": 4})
    assert samples_of(log, "x").meta == {
        **{"schema": 1, "device": "cpu", "device_kind": "cpu", "torch": "2", "block_size": 16}
    }
    del log.meta["device"]
    assert "device_kind" not in samples_of(log, "x").meta


def test_what_masks_added_is_taken_out() -> None:
    log = log_of([(0, 10), (10, 30)], gpu_ns=[8, 9], mask_exposed_ns=[3, 0])
    log.steps.update(launching_ns=[5, 6], constrained_rows=[1, 0])
    found = samples_of(log, "x")
    assert found["gpu_ns"].tolist() == [5, 9]
    assert found["total_ns"].tolist() == [7, 20]
    assert found["launching_ns"].tolist() == [0, 6]


def test_overlapping_steps_count_the_work_of_the_host_and_the_longer_of_device_and_launches() -> None:
    """Of the second, planned together with the first, the schedule, preparation and launch of that one are
    taken out; the third began 5 ns behind the end of the first, while a request was there."""
    log = log_of([(0, 100), (0, 200), (105, 300)], seen_ns=[0, 0, 0], gpu_ns=[50, 60, 7])
    log.steps.update(schedule_ns=[1, 9, 3], prepare_ns=[2, 9, 3], launch_ns=[4, 9, 30], finish_ns=[8, 9, 3])
    assert samples_of(log, "x")["total_ns"].tolist() == [
        (1 + 2 + 4 + 8) + 50,
        (9 + 9 + 9 + 9) - (1 + 2 + 4) + 60,
        (3 + 3 + 30 + 3) + 5 + 7,
    ]
    log.steps["launching_ns"] = [3, 100, 20]
    assert samples_of(log, "x")["total_ns"].tolist() == [
        (1 + 2 + 1 + 8) + 50,
        (9 + 9 + 0 + 9) - (1 + 2 + 4) + 60,
        (3 + 3 + 10 + 3) + 5 + 20,
    ]
    log.requests["finish_ns"] = [90]
    assert samples_of(log, "x")["total_ns"].tolist()[2] == (3 + 3 + 10 + 3) + 20


def test_what_follows_the_last_round_of_a_batch_counts_in_the_first() -> None:
    log = log_of([(0, 10), (10, 20), (20, 50), (50, 60), (60, 90), (90, 100)], batch=[1, 1, 1, 2, 3, 3])
    log.steps.update(schedule_ns=[1] * 6, launch_ns=[9] * 6, finish_ns=[5] * 6, failed=[0, 0, 0, 0, 0, 1])
    found = samples_of(log, "x")
    assert found["total_ns"].tolist() == [10 + 20, 10, 30 - 20, 10, 30]
    assert found["begins_batch"].tolist() == [1, 0, 0, 1, 1]


def test_medians_are_of_the_repetitions_of_a_composition() -> None:
    columns: dict[str, Any] = {
        "source": ["a", "a", "a", "b", "a"],
        "shape": [1, 1, 1, 1, 2],
        "regime": ["eager"] * 4 + ["graph"],
        "total_ns": [10, 21, 50, 7, 8],
        "gpu_ns": [5, 6, 40, 3, 4],
        "active_experts": [1, 2, 2, 0, 0],
        "decode_seqs": [3, 3, 4, 1, 1],
    }
    found = medians(samples_from({"m": 1}, columns, 5))
    assert found["repetition"].tolist() == [3, 1, 1]
    assert found["total_ns"].tolist() == [21, 7, 8]
    assert found["gpu_ns"].tolist() == [6, 3, 4]
    assert found["host_ns"].tolist() == [15, 4, 4]
    assert found["source"].tolist() == ["a", "b", "a"]
    assert found["regime"].tolist() == ["eager", "eager", "graph"]
    even = medians(samples_from({}, {"source": ["a"] * 2, "total_ns": [1, 4], "gpu_ns": [1, 2]}, 2))
    assert even["total_ns"].tolist() == [2]  # of 2.5
    assert even["gpu_ns"].tolist() == [2]


def test_parts_of_samples_are_joined_and_columns_that_are_missing_are_unknown() -> None:
    one, other = samples_from({"a": 1}, {"shape": [5]}, 1), samples_from({"a": 2}, {"shape": [6, 7]}, 2)
    assert joined([one, other])["shape"].tolist() == [5, 6, 7]
    assert joined([one, other]).meta == {"a": 1}
    assert joined([one, other], {}).meta == {}
    assert len(joined([], {"a": 3})) == 0
    assert joined([], {"a": 3}).meta == {"a": 3}
    assert (one["active_experts"].tolist(), one["source"].tolist(), one["sm_mhz"].tolist()) == (
        [-1],
        [""],
        [0],
    )


def test_samples_have_every_column_and_all_of_one_length() -> None:
    whole = samples_from({}, {}, 2)
    with pytest.raises(ValueError, match="without the column"):
        StepSamples({}, {name: column for name, column in whole.table.items() if name != "power_w"})
    with pytest.raises(ValueError, match="equal length"):
        StepSamples({}, whole.table | {"power_w": np.zeros(3)})


# -- a trace of single steps -------------------------------------------------------------------------------


class Track:
    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self.requests: list[tuple[Any, ...]] = []

    def step(self, start_ns: int, end_ns: int, state: Any, facts: Any, steps: int) -> None:
        self.steps.append((start_ns, end_ns, state, dict(facts), steps))

    def request(self, phases: Any, facts: Any) -> None:
        self.requests.append((phases, facts))


def trace(monkeypatch: pytest.MonkeyPatch, sample: int = 1) -> tuple[StepTrace, Track]:
    track = Track()
    monkeypatch.setattr("blis_py.traces.perfetto.InstanceTrack", lambda writer, name: track)
    writer: Any = SimpleNamespace(window=SimpleNamespace(sample=sample))
    return StepTrace(writer), track


def step(start_ns: int, end_ns: int, **facts: int) -> dict[str, float]:
    return {
        **{"start_ns": start_ns, "end_ns": end_ns, "running": 2, "waiting": 1, "kv_blocks": 9},
        **{"prefill_seqs": 0, "prefill_tokens": 0, "decode_seqs": 2, "decode_kv_tokens": 50},
        **{"schedule_ns": 3, "gpu_ns": 5, **facts},
    }


NEVER = (-1, -1)


def test_each_step_is_a_slice_with_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    found, track = trace(monkeypatch)
    found.step(step(10, 20), NEVER, [4], [])
    found.step(step(20, 30), (21, 29), [], [])
    found.step(step(30, 40), (0, 9), [], [])
    assert [slice_[:3] for slice_ in track.steps] == [
        (10, 20, (2, 1, 9)), (21, 29, (2, 1, 9)), (0, 9, (2, 1, 9))
    ]  # fmt: skip
    assert [(slice_[3]["admitted"], slice_[4]) for slice_ in track.steps] == [(1, 1), (0, 1), (0, 1)]
    assert track.steps[0][3]["decode_kv_tokens"] == 50


@pytest.mark.parametrize(
    ("second", "admitted", "slices"),
    [
        (step(20, 30, decode_kv_tokens=52, kv_blocks=10), [], 1),
        (step(20, 30, prefill_tokens=1), [], 2),
        (step(20, 30), [3], 2),
        (step(20, 30, decode_seqs=3), [], 2),
        (step(20, 30, running=3), [], 2),
        (step(20, 30, waiting=2), [], 2),
    ],
)
def test_of_a_sample_alike_decode_steps_are_one_slice(
    monkeypatch: pytest.MonkeyPatch, second: dict[str, float], admitted: list[int], slices: int
) -> None:
    found, track = trace(monkeypatch, sample=2)
    found.step(step(10, 20), NEVER, [], [])
    found.step(second, NEVER, admitted, [])
    assert len(track.steps) == slices - 1
    found.close()
    assert len(track.steps) == slices
    if slices == 1:
        start, end, state, facts, steps = track.steps[0]
        assert (start, end, state, steps) == (10, 30, (2, 1, 9), 2)
        assert (facts["schedule_ns"], facts["gpu_ns"], facts["decode_kv_tokens"]) == (6, 10, 50)
    found.close()
    assert len(track.steps) == slices


def test_a_step_behind_a_prompt_is_a_slice_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found, track = trace(monkeypatch, sample=2)
    for row in (step(0, 9, prefill_tokens=5), step(9, 10), step(10, 11), step(11, 12)):
        found.step(row, NEVER, [], [])
    found.close()
    assert [slice_[4] for slice_ in track.steps] == [1, 3]


def ended(number: int, **columns: Any) -> dict[str, Any]:
    return {
        **{"number": number, "id": f"r{number}", "arrival_ns": 5, "first_token_ns": 30, "finish_ns": 50},
        **{"prompt_tokens": 7, "output_tokens": 3, "cached_tokens": 2, "preemptions": 1},
        **{"finish_reason": "stop", **columns},
    }


def test_phases_of_a_request_are_between_its_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    found, track = trace(monkeypatch)
    found.step(step(10, 20), NEVER, [0, 1], [])
    found.step(step(35, 40), NEVER, [], [0])
    found.step(step(45, 48), NEVER, [0], [])
    found.request(ended(0))
    found.request(ended(1, first_token_ns=-1, finish_ns=-1))
    found.request(ended(2, arrival_ns=50))
    phases, facts = track.requests[0]
    assert phases == [
        ("queued", 5, 10), ("prefill", 10, 30), ("decode", 30, 35), ("preempted", 35, 45), ("prefill", 45, 50)
    ]  # fmt: skip
    assert facts == {
        **{"request": "r0", "prompt tokens": 7, "output tokens": 3, "cached tokens": 2},
        **{"preemptions": 1, "outcome": "stop"},
    }
    assert track.requests[1][0] == [("queued", 5, 10), ("prefill", 10, 48)]
    assert track.requests[2][0] == [("decode", 30, 50)]


def test_a_request_without_time_is_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    found, track = trace(monkeypatch)
    found.request(ended(0, arrival_ns=0, first_token_ns=-1, finish_ns=0))
    assert track.requests[0][0] == [("queued", 0, 0)]


def test_of_a_sample_every_second_request_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    found, track = trace(monkeypatch, sample=2)
    found.step(step(10, 20), NEVER, [0, 1, 2, 3], [])
    for number in range(4):
        found.request(ended(number))
    assert [facts["request"] for _, facts in track.requests] == ["r0", "r2"]
    assert not found._changes


# -- spans -------------------------------------------------------------------------------------------------


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
