"""Plans of fleets with pools: numbers of instances and prices of each, and analyses of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import blis_py as blis
from blis_py.api import configure
from blis_py.config.models import RunConfig
from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.planning.fleets import price_of, unpriced
from blis_py.planning.goal import Judgement
from blis_py.planning.job import Job, Variation
from blis_py.planning.plan import Plan
from blis_py.planning.prices import Prices
from blis_py.planning.search import Probe, Search, SearchLine
from blis_py.planning.worker import varied

COUNTS = {"pools.new.count": [0, 1, 2], "pools.old.count": [0, 1, 2, 3]}
FLEET = """\
model: llama-3.1-8b
pools:
  - {name: new, count: 1, gpu: h100, price_per_hour: 3.0}
  - {name: old, count: 1, gpu: l40s, price_per_hour: 0.9}
"""
LOAD: dict[str, Any] = {
    "num_requests": 80,
    "rate": 60,
    "output_tokens": 48,
    "slo": "ttft.p99=500ms tpot.p99=34ms",
    "routing_policy": "least-loaded",
}
QUICK: dict[str, Any] = {"draws": 0, "workers": 1, "cache": False, "tune": False, "most_requests": 80}


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    return str(path)


def planned(fleet: str, **settings: Any) -> Plan:
    return blis.plan(fleet, **LOAD | QUICK | settings)


def of_counts(fleet: str, new: int, old: int) -> RunConfig:
    path = Path(fleet).with_name(f"{new}-{old}.yaml")
    text = FLEET.replace("new, count: 1", f"new, count: {new}").replace("old, count: 1", f"old, count: {old}")
    path.write_text(text)
    return configure(str(path), **LOAD)


@pytest.mark.slow
def test_the_cheapest_fleet_is_that_of_brute_force(fleet: str) -> None:
    found = planned(fleet, vary=COUNTS)
    rows = blis.sweep(fleet, vary=COUNTS, workers=1, cache=False, **LOAD).table
    holding = rows[(rows.status == "ok") & (rows.slo_met == True) & (rows.verdict != "saturated")]  # noqa: E712
    cost = 3.0 * holding["pools.new.count"] + 0.9 * holding["pools.old.count"]
    assert 1 < len(holding) < len(rows) - 1
    assert found.best.dollars_per_hour == pytest.approx(cost.min())
    cheapest = holding.loc[cost.idxmin(), list(COUNTS)]
    assert found.best.point == dict(cheapest)
    assert "count" not in str(found.best).partition(":")[2], "counts stand in the list of pools"


def test_a_fleet_costs_what_its_pools_cost_one_without_instances_nothing(fleet: str) -> None:
    prices = Prices()
    for new, old in ((1, 2), (2, 0), (0, 3)):
        config = of_counts(fleet, new, old)
        price = price_of(config, prices)
        assert price is not None
        assert price.per_hour * (new + old) == pytest.approx(3.0 * new + 0.9 * old)
        assert price.source == "as given"
        assert unpriced(config, prices) == []


def test_what_costs_more_than_a_fleet_that_holds_is_not_tried() -> None:
    probed: list[int] = []

    def evaluate(probes: Sequence[Probe], _: bool) -> list[Judgement]:
        probed.extend(line for line, _ in probes)
        return [Judgement(line == 10) for line, _ in probes]

    lines = [SearchLine(float(30 - line)) for line in range(30)]
    assert Search(lines, [1], evaluate).best() == (10, 0)
    assert sorted(probed) == list(range(6, 30)), "eight at a time, cheapest first"


def test_draws_and_levers_change_every_pool(fleet: str) -> None:
    config = of_counts(fleet, 1, 1)
    plain = varied(Job(config))
    step = StepFeatures(decode_seqs=8, decode_kv_tokens=4000, emitted_rows=8)
    slower = varied(Job(config, Variation(gpu_time=2.0)))
    for before, after in zip(plain.pools, slower.pools, strict=True):
        assert after.latency.step(step).gpu_ns == pytest.approx(
            2 * before.latency.step(step).gpu_ns, rel=1e-3
        )
    larger = varied(Job(config, Variation(kv_blocks=1.25)))
    for before, after in zip(plain.pools, larger.pools, strict=True):
        assert after.scheduler.num_kv_blocks == round(1.25 * before.scheduler.num_kv_blocks)


@pytest.mark.slow
def test_a_plan_of_pools_states_how_certain_it_is_and_what_is_short(fleet: str) -> None:
    found = planned(fleet, vary={"pools.new.count": [2, 3]}, draws=3)
    assert all(case.outcome.ran or case.outcome.early_stop for case in found.draws)
    assert {"compute", "KV", "host"} <= {lever.resource for lever in found.levers}


def test_instances_of_pools_are_counted_by_pool(fleet: str) -> None:
    with pytest.raises(InputError, match=r"vary pools\.NAME\.count"):
        planned(fleet, instances="1:4")
