"""Plans beside brute force: the committed rows of all cases."""

from __future__ import annotations

import json
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from brute_force import CASES, RESULTS  # noqa: E402


def test_every_plan_is_the_same_or_cheaper_and_true_at_twenty_times_the_length() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert [row["case"] for row in rows] == CASES
    assert [row["case"] for row in rows if not row["same_or_cheaper"]] == []
    assert [row["untrue"] for row in rows if row["untrue"]] == []
