"""Published transfer times of two machines: what the guide says of them is what was computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS: list[dict[str, Any]] = json.loads((ROOT / "benchmarks" / "results" / "transfers.json").read_text())


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result["table"].partition(",")[0])
def test_sizes_that_were_not_learned_on_are_within_a_tenth_and_as_in_the_guide(
    result: dict[str, Any],
) -> None:
    gpu = result["table"].partition(",")[0]
    guide = (ROOT / "docs" / "disaggregation.md").read_text(encoding="utf-8")
    (line,) = [line for line in guide.splitlines() if line.startswith(f"| 2 × 8 {gpu}")]
    base_ms, gbps, largest = line.split(" | ")[2:]
    worst = max(map(abs, result["errors_of_the_other_sizes"]))
    assert worst <= 0.1
    assert float(largest.rstrip(" |%")) == pytest.approx(100 * worst, abs=0.05)
    assert float(base_ms) == pytest.approx(result["base_ms"], abs=0.006)
    assert float(gbps) == pytest.approx(result["gbps"], abs=0.6)
