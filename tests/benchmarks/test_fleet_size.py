from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_the_cost_of_each_instance_more_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import fleet_size

    rows = fleet_size.measure([2, 4], requests=8, repeat=1)
    assert [each["instances"] for each in rows] == [2, 4]
    assert rows[1]["ms_per_instance"] == pytest.approx(500 * (rows[1]["all"] - rows[0]["all"]))
    assert rows[1]["all"] == pytest.approx(sum(rows[1][name] for name in fleet_size.PARTS))
    assert len(fleet_size.table(rows).splitlines()) == 4
