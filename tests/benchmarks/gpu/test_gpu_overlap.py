"""The benchmark of both loops: one model for all of its engines, and the same tokens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import overlap
import pytest
from jobs import AR
from rows import read_rows

ROOT = Path(__file__).resolve().parents[3]


def test_both_loops_and_every_batch_share_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads, load = [], overlap.load

    def counted(*arguments: Any) -> Any:
        loads.append(arguments)
        return load(*arguments)

    monkeypatch.setattr(overlap, "load", counted)
    small = ["--batch", "1", "2", "--context", "8", "--steps", "6"]
    model = str(ROOT / AR)
    monkeypatch.setattr(
        sys, "argv", ["overlap.py", "--model", model, *small, "--device", "cpu", "--out", str(tmp_path)]
    )
    overlap.main()
    rows = [row for row in read_rows(tmp_path) if "key" in row]
    assert [row["same_tokens"] for row in rows] == [True, True]
    assert len(loads) == 1
