"""The committed errors of disaggregated operating points meet their bars, and are those of the pages."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "accuracy"))
TOP: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "disaggregated.json").read_text())
RUN = [entry for entry in TOP["points"] if "errors" in entry]


def median(name: str) -> float:
    """Of the absolute errors, in per cent."""
    return 100 * float(np.median([abs(entry["errors"][name]) for entry in RUN]))


@pytest.mark.parametrize(("name", "bar"), [("ttft.mean", 30), ("tpot.mean", 15), ("throughput", 15)])
def test_medians_are_within_their_bars(name: str, bar: float) -> None:
    assert median(name) <= bar


def test_four_fifths_are_expressed_and_all_of_these_were_run() -> None:
    from disaggregated_page import ASIDE

    counted = [entry for entry in TOP["points"] if entry.get("refused") not in ASIDE]
    able = [entry for entry in counted if "refused" not in entry]
    assert len(able) >= 0.8 * len(counted)
    assert len(able) == len(RUN)


def test_four_fifths_of_the_pairs_of_layouts_have_the_right_order() -> None:
    pairs = TOP["pairs"]["any number of requests in flight"]
    assert np.mean([pair["right"] for pair in pairs]) >= 0.8


def test_the_page_shows_the_committed_results() -> None:
    from disaggregated_page import PAGE, put

    page = PAGE.read_text(encoding="utf-8")
    assert put(page) == page


def test_the_guides_have_the_number_of_points_and_the_medians() -> None:
    lines = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith("| prefill and decode on GPUs of their own")]
    guide = (ROOT / "docs" / "disaggregation.md").read_text(encoding="utf-8")
    assert f"\n{len(RUN)} operating points" in guide
    what, others, ttft = (cell.strip() for cell in line.split("|")[1:-1])
    assert f"{len(RUN)} points" in what
    tpot, throughput = f"TPOT {median('tpot.mean'):.0f} %", f"throughput {median('throughput'):.0f} %"
    assert others == f"{tpot}, {throughput} in the median"
    assert ttft == f"{median('ttft.mean'):.0f} % in the median"
