"""CPU time of runs with expert groups beside runs without: how pairs are made, and the bar as measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_pairs_take_turns_and_the_ratio_is_the_median_of_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    import ranks

    made: list[int] = []

    def timed(settings: ranks.Settings, requests: int) -> float:
        """The machine becomes faster from run to run; a group costs a fifth more, with attention twice."""
        made.append(settings.get("ep", 1) * settings.get("attention_dp", 1))
        return 0.9 ** len(made) * {1: 1.0, 4: 1.2, 16: 2.0}[made[-1]]

    monkeypatch.setattr(ranks, "cpu_s", timed)
    rows = ranks.measure({"one": {"tp": 4}}, requests=1, pairs=2)
    assert [row["group"] for row in rows] == ["EP", "EP + DP"]
    assert made == [4, 1, 4, 1, 1, 4, 16, 1, 16, 1, 1, 16], "one to warm up, then two pairs"
    assert [row["ratio"] for row in rows] == pytest.approx([1.2, 2.0], rel=0.01)
    assert len(ranks.table(rows).splitlines()) == 4


def test_a_group_of_experts_costs_what_it_may_as_measured_last() -> None:
    """With attention replicated besides as well as without."""
    import ranks

    found = json.loads(ranks.RESULTS.read_text())
    assert found["servers"] == ranks.SERVERS
    assert found["load"] == ranks.LOAD
    assert found["provenance"]["native"]
    ratios = {(row["server"], row["group"]): row["ratio"] for row in found["rows"]}
    assert ratios.keys() == {(server, group) for server in ranks.SERVERS for group in ("EP", "EP + DP")}
    assert all(ratio <= ranks.MOST for ratio in ratios.values())
