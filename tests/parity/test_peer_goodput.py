"""Goodput by class beside a recorded run of BLIS: three classes, one of them requests without any."""

from __future__ import annotations

import csv
import gzip
import json
import shlex
from pathlib import Path

import pytest

from blis_py.cli import main

CASE = Path("peer_runs") / "26_goodput_multi_model"
NOBODY_SERVES = "other/model-9b"


def test_requests_that_meet_their_targets_are_those_that_met_them_there(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests for a model that nobody serves were rejected there; they count among the arrivals."""
    folder = shared_data / CASE
    with gzip.open(folder / "metrics.json.gz", "rt") as text:
        theirs = json.load(text)
    with gzip.open(folder / "trace.csv.gz", "rt") as text:
        rows = list(csv.DictReader(text))
    served = [row for row in rows if row["model"] != NOBODY_SERVES]
    with (tmp_path / "trace.csv").open("w", newline="") as text:
        writer = csv.DictWriter(text, rows[0])
        writer.writeheader()
        writer.writerows(served)
    (tmp_path / "trace.yaml").write_text((folder / "trace.yaml").read_text())
    command = shlex.split((folder / "cmd.txt").read_text().splitlines()[-1])[1:]
    for flag in ("--results-path", "--metrics-path"):
        del command[command.index(flag) : command.index(flag) + 2]
    command[command.index("trace.yaml")] = str(tmp_path / "trace.yaml")
    command[command.index("trace.csv")] = str(tmp_path / "trace.csv")
    assert main([*command, "--engine", "blis", "--format", "blis"]) == 0
    ours = json.loads(capsys.readouterr().out)
    arrived = {
        name: sum((row["slo_class"] or "default") == name for row in rows) for name in theirs["per_class"]
    }
    assert ours["per_class"].keys() == theirs["per_class"].keys()
    for name, want in theirs["per_class"].items():
        got = ours["per_class"][name]
        assert arrived[name] == want["count"]
        assert got["goodput_rps"] == pytest.approx(want["goodput_rps"], rel=1e-4)
        assert round(got["slo_attainment"] * got["count"]) == round(want["slo_attainment"] * want["count"])
        assert got["slo_attainment_by_dim"] == pytest.approx(want["slo_attainment_by_dim"])
        for figure in ("ttft_p99_ms", "itl_mean_ms", "e2e_p99_ms"):
            assert got[figure] == pytest.approx(want[figure], abs=2e-3)
    assert ours["goodput_rps"] == pytest.approx(theirs["goodput_rps"], rel=1e-4)
