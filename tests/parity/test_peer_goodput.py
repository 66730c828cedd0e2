"""Goodput by class beside a recorded run of BLIS: three classes, one of them requests without any."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from blis_py.cli import main

CASE = Path("peer_runs") / "26_goodput_multi_model"
REJECTED_AT_ROUTING = 27


@pytest.fixture(scope="module")
def folder(shared_data: Path) -> Path:
    return shared_data / CASE


def command(folder: Path, tmp_path: Path) -> list[str]:
    """What was run there, with its files here."""
    words = shlex.split((folder / "cmd.txt").read_text().splitlines()[-1])[1:]
    for name in ("trace.yaml", "trace.csv"):
        packed = folder / f"{name}.gz"
        text = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()
        (tmp_path / name).write_bytes(text)
    place = {name: str(tmp_path / name) for name in words if name.endswith((".yaml", ".csv", ".json"))}
    return [*(place.get(word, word) for word in words), "--engine", "blis", "--format", "blis-text"]


def packed(path: Path) -> Any:
    with gzip.open(path, "rt") as text:
        return json.load(text)


@pytest.mark.slow
def test_requests_that_meet_their_targets_are_those_that_met_them_there(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests for a model that no instance serves count among the arrivals."""
    theirs = packed(folder / "metrics.json.gz")
    assert main(command(folder, tmp_path)) == 0
    ours = json.loads((tmp_path / "metrics.json").read_text())
    assert ours["per_class"].keys() == theirs["per_class"].keys()
    for name, want in theirs["per_class"].items():
        got = ours["per_class"][name]
        assert got["count"] == want["count"]
        assert got["slo_attainment"] == pytest.approx(want["slo_attainment"])
        assert got["goodput_rps"] == pytest.approx(want["goodput_rps"], rel=1e-4)
        assert got["slo_attainment_by_dim"] == pytest.approx(want["slo_attainment_by_dim"])
        for figure in ("ttft_p99_ms", "itl_mean_ms", "e2e_p99_ms"):
            assert got[figure] == pytest.approx(want[figure], abs=2e-3)
    assert ours["slo_attainment"] == pytest.approx(theirs["slo_attainment"])
    assert ours["goodput_rps"] == pytest.approx(theirs["goodput_rps"], rel=1e-4)


def test_requests_for_a_model_that_is_not_served_are_rejected_at_routing_as_there(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others take their turns as if these had never come."""
    assert main(command(folder, tmp_path)) == 0
    ours, theirs = json.loads((tmp_path / "metrics.json").read_text()), packed(folder / "metrics.json.gz")
    for name in ("injected_requests", "completed_requests", "total_input_tokens", "total_output_tokens"):
        assert ours[name] == theirs[name]
    by_id = {row["requestID"]: row for row in ours["requests"]}
    assert by_id.keys() == {row["requestID"] for row in theirs["requests"]}
    for want in theirs["requests"]:
        got = by_id[want["requestID"]]
        assert got["handled_by"] == want["handled_by"]
        assert got.get("model", "") == want.get("model", "")
        for figure in ("ttft_ms", "e2e_ms"):
            assert got[figure] == pytest.approx(want[figure], abs=1.1e-3)
    assert f"Rejected Requests (Routing): {REJECTED_AT_ROUTING}\n" in capsys.readouterr().out


def test_results_are_of_the_same_requests_as_there(folder: Path, tmp_path: Path) -> None:
    assert main(command(folder, tmp_path)) == 0
    ours, theirs = json.loads((tmp_path / "results.json").read_text()), packed(folder / "results.json.gz")
    assert [row.keys() for row in ours] == [row.keys() for row in theirs]
    assert [row["request_id"] for row in ours] == [row["request_id"] for row in theirs]
