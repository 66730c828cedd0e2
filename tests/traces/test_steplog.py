"""Files of step logs: written and read again, and what is wrong with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from step_logs import log_of

from blis_py.errors import InputError
from blis_py.traces import _steplog_files
from blis_py.traces.samples import read_samples, samples_from, write_samples
from blis_py.traces.steplog import read_step_log, write_step_log


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
        assert _steplog_files._of_parquet(file, "gpu_ns", "int", number) == number
        return
    with pytest.raises(InputError, match="not what belongs here"):
        read_step_log(file)
    with pytest.raises(InputError, match="not what belongs here"):
        _steplog_files._of_parquet(file, "gpu_ns", "int", number)


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
        assert _steplog_files._of_parquet(Path("x"), "n", kind, value) == expected
        return
    with pytest.raises(InputError, match="not what belongs here"):
        _steplog_files._of_parquet(Path("x"), "n", kind, value)


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
