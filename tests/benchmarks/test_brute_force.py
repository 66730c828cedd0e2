"""Plans beside brute force: the committed rows of all cases."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from brute_force import CASES, RESULTS  # noqa: E402


def rows() -> list[dict[str, Any]]:
    return json.loads(RESULTS.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_every_case_has_a_row_and_no_statement_is_untrue_at_twenty_times_the_length() -> None:
    assert [row["case"] for row in rows()] == CASES
    assert [row["untrue"] for row in rows() if row["untrue"]] == []


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_plan_is_the_same_or_cheaper(number: int) -> None:
    assert rows()[number]["same_or_cheaper"]
