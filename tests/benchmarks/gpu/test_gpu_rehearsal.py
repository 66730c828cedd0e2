"""The campaign, rehearsed without a GPU: nothing of it fails for a reason that could be known before."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_tables import TABLES

ROOT = Path(__file__).resolve().parents[3]
REHEARSAL = ROOT / "benchmarks" / "gpu" / "rehearsal.py"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(shutil.which("timeout") is None, reason="needs coreutils")
def test_a_campaign_brings_home_what_draws_the_tables_and_fits_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute of CPU time: as many processes as a GPU's minutes will see, each with its imports."""
    pytest.importorskip("triton")
    if not (ROOT / ".git").exists():
        pytest.skip("an export is made of a repository")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [sys.executable, str(REHEARSAL), "--to", str(tmp_path / "rehearsal")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    tree, out, brought = (tmp_path / "rehearsal" / name for name in ("tree", "out-3", "brought"))
    assert not (tree / ".git").exists()
    assert sorted(path.name for path in out.iterdir()) == [
        "caches.tar.gz.0",
        "log.txt",
        "profiles",
        "results.jsonl",
    ]
    results = brought / "benchmarks" / "results" / "gpu" / "cpu"
    tables = (results / "README.md").read_text()
    for title in TABLES:
        assert f"## {title}\n\n| " in tables
    report = json.loads((results / "ops.json").read_text())
    (measured,) = {run["revision"] for run in report["runs"].values()}
    assert measured.startswith("rehearsal tree:")
    (fitted,) = brought.glob("profiles/fits/cpu/*/profile.yaml")
    assert "cross_validated" in fitted.read_text()
    log = (out / "log.txt").read_text()
    assert "pydantic" not in log
    assert "simpy" not in log
