"""The benchmark of the server's threads serves every stream to its end under either switch interval."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("uvicorn")

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "engine_front_end.py"


@pytest.mark.slow
def test_a_pair_is_measured_under_either_interval() -> None:
    sizes = ("--streams", "3", "--tokens", "4", "--step-ms", "1", "--pairs", "1")
    done = subprocess.run([sys.executable, SCRIPT, *sizes], capture_output=True, text=True, check=True)
    (pair,) = json.loads(done.stdout)["pairs"]
    assert pair["python_ms"] >= 0
    assert pair["server_ms"] >= 0
