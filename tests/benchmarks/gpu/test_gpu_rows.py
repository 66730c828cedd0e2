"""The file that everything measured on a GPU goes to: appended line by line, and what is there is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rows import RESULTS, Rows, read_rows

H200 = {"gpu": "H200", "revision": "abc"}


def keys(out: Path) -> list[str]:
    return [row["key"] for row in read_rows(out) if "key" in row]


def test_a_row_is_on_disk_when_it_has_been_measured_and_states_where_that_was(tmp_path: Path) -> None:
    rows = Rows(tmp_path, "ops", H200)
    assert not (tmp_path / RESULTS).exists(), "nothing has been measured yet"
    rows.add("one", {"us": 3.5})
    report, row = read_rows(tmp_path)
    assert report["provenance"] == H200
    assert row == {"script": "ops", "run": report["run"], "key": "one", "us": 3.5}
    rows.add("two", {})
    assert keys(tmp_path) == ["one", "two"]


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    def refuse() -> Any:
        raise AssertionError("measured again")

    Rows(tmp_path, "ops", H200).once("one", lambda: {"us": 1})
    again = Rows(tmp_path, "ops", H200)
    found = again.once("one", refuse)
    assert found is not None
    assert found["us"] == 1
    assert again.failures == 0
    assert keys(tmp_path) == ["one"]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (H200, {"gpu": "H100", "revision": "abc"}),
        (H200, {"gpu": "H200", "revision": "def"}),
        ({"gpu": "H200", "revision": "abc tree:1"}, {"gpu": "H200", "revision": "abc tree:2"}),
        ({"gpu": "H200", "revision": ""}, {"gpu": "H200", "revision": ""}),
    ],
)
def test_rows_of_another_gpu_or_of_other_code_do_not_count(
    tmp_path: Path, before: dict[str, str], now: dict[str, str]
) -> None:
    Rows(tmp_path, "ops", before).add("one", {})
    assert Rows(tmp_path, "ops", now).before("one") is None
    assert Rows(tmp_path, "attention", before).before("one") is None, "nor do those of another script"


def test_what_cannot_be_measured_is_noted_and_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> Any:
        raise RuntimeError("out of memory, say")

    rows = Rows(tmp_path, "ops", H200)
    assert rows.once("one", broken) is None
    assert rows.once("two", lambda: {"us": 2}) is not None, "the others are measured all the same"
    assert rows.failures == 1
    assert "out of memory, say" in capsys.readouterr().err
    assert read_rows(tmp_path)[1]["error"] == "RuntimeError: out of memory, say"
    assert Rows(tmp_path, "ops", H200).before("one") is None


def test_cases_that_cannot_be_made_do_not_end_the_others(tmp_path: Path) -> None:
    def cases() -> Any:
        yield 1
        raise ValueError("no such shape")

    rows = Rows(tmp_path, "ops", H200)
    assert list(rows.guarded("norms", cases())) == [1]
    assert rows.failures == 1
    assert keys(tmp_path) == ["norms"]


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_line_that_was_cut_off_costs_itself_alone(
    tmp_path: Path, cut: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = Rows(tmp_path, "ops", H200)
    rows.add("one", {"us": 1})
    rows.add("two", {"samples": list(range(40))})
    text = (tmp_path / RESULTS).read_bytes()
    (tmp_path / RESULTS).write_bytes(text[:-cut])
    again = Rows(tmp_path, "ops", H200)
    again.once("two", lambda: {"us": 2})
    again.once("three", lambda: {"us": 3})
    complete = cut == 1  # only the end of the line is missing
    assert keys(tmp_path) == ["one", "two", *(["three"] if complete else ["two", "three"][1:])]
    assert ("cut off" in capsys.readouterr().err) != complete


def test_without_a_folder_rows_are_not_kept() -> None:
    rows = Rows(None, "ops", H200)
    assert rows.once("one", lambda: {"us": 1}) is not None
