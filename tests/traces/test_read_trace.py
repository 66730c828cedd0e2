"""Steps common to all formats: the part of a file, checks of the options, order, classes, and models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_traces import requests

from blis_py.errors import InputError
from blis_py.requests.table import Labels
from blis_py.traces import _check, _note_order, _part, _with_classes, _without_answerers, is_spec
from blis_py.traces.reading import Reading


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
