"""The study of cache-aware scheduling runs, and its figures agree with each other."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "cache_aware.py"


@pytest.mark.long
def test_the_study_measures_and_draws(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--only", "hot_44", "--requests", "60", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stream = json.loads((tmp_path / "cache_aware.json").read_text())["hot_44"]
    points = {
        (point["scheduler"], point["prefix_cache"], point.get("fairness_ms", "")): point
        for point in stream["points"]
    }
    assert stream["requests"] == 60
    assert 0 < stream["belady"] <= stream["ceiling"]
    assert all(point["hit_rate"] <= stream["ceiling"] for point in stream["points"])
    assert points["fcfs", "none", ""]["hit_rate"] == 0
    at_once, in_order = points["lpm", "radix", 0], points["fcfs", "radix", ""]
    for figure in ("hit_rate", "wait_p99_s", "requests_per_s"):
        assert at_once[figure] == in_order[figure]
    assert (tmp_path / "cache_aware.png").stat().st_size > 10_000
    assert "hot prefixes, 44 requests/s" in done.stdout


def test_the_guide_shows_the_figures_measured_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    cache_aware = import_module("cache_aware")
    measured = json.loads((ROOT / "benchmarks" / "results" / "cache_aware.json").read_text())
    assert list(measured) == list(cache_aware.STREAMS)
    assert cache_aware.markdown(measured) in (ROOT / "docs" / "cache-aware.md").read_text(encoding="utf-8")
