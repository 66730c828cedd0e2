"""Disaggregate or not: layouts of the same instances under one load, and reasons that are its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import blis_py as blis
from blis_py import api
from blis_py.config.disaggregation import split_xpyd
from blis_py.errors import InputError
from blis_py.planning import disaggregate
from blis_py.planning.axes import parse_axis
from blis_py.planning.disaggregate import Layouts, best_of, layouts_of
from blis_py.planning.executors import Serial
from blis_py.planning.job import JobOutcome
from blis_py.planning.plan import Plan
from blis_py.planning.prices import Prices
from blis_py.planning.runner import Runner
from blis_py.planning.store import Nowhere
from blis_py.planning.sweep import OK, Row

LOAD = {"model": "llama-3.1-8b", "gpu": "h100", "workload": "chat", "rate": 24, "num_requests": 120}


def layouts(*slo: str, instances: int = 4) -> Layouts:
    config = api.configure(None, slo=list(slo), **LOAD)
    with Runner(Serial(), Nowhere()) as runner:
        return layouts_of(config, instances, runner)


@pytest.mark.slow
def test_all_layouts_run_and_the_target_decides() -> None:
    found = layouts("itl.p99=12ms", "ttft.p99=400ms")
    assert [row.point["xpyd"] for row in found.rows] == ["4", "1p3d", "2p2d", "3p1d"]
    assert found.apart
    assert found.winner is found.best_apart
    prefill, decode, _ = split_xpyd(found.winner.point["xpyd"])
    first, why, gains, costs, every = found.lines()
    assert first == (
        f"Disaggregate: yes. {prefill} prefill and {decode} decode instances meet 2 of 2 targets, "
        "4 instances that do both 1."
    )
    assert why.startswith("  why: 4 instances that do both miss p99 ITL")
    assert gains.startswith("  gains: p99 ITL"), "the largest gain first"
    assert costs.startswith("  costs: p99 TTFT")
    assert all(f"{layout} " in every for layout in ("4", "1p3d", "2p2d", "3p1d"))
    assert found.dollars is None, "without prices"
    together = layouts("ttft.p99=400ms")
    assert not together.apart
    assert "leave more room" in together.why


def row(layout: str, met: int, share: float) -> Row:
    keys = {"metric": "ttft", "limit_ms": 100.0, "measured_ms": 100 * share}
    slo = [{"slo": "ttft.p99=100ms", "met": number < met, **keys} for number in (0, 1)]
    return Row({"xpyd": layout}, 0, JobOutcome(slo=slo))


def test_more_targets_come_before_more_room() -> None:
    one, two, roomy = row("1p3d", 1, 0.2), row("2p2d", 2, 0.9), row("3p1d", 2, 0.8)
    assert best_of([one, two]) is two
    assert best_of([one, two, roomy]) is roomy


@pytest.mark.parametrize(
    ("together", "apart", "dollars"),
    [(3.0, 4.0, (4.0, 3.0)), (3.0, 3.0, (3.0, 3.0)), (None, 4.0, None), (None, None, None)],
)
def test_the_price_of_the_winner_stands_before_that_of_the_other_kind(
    monkeypatch: pytest.MonkeyPatch,
    together: float | None,
    apart: float | None,
    dollars: tuple[float, float] | None,
) -> None:
    rows = (row("2", 1, 0.9), row("1p1d", 2, 0.5))
    rows = tuple(replace(each, outcome=replace(each.outcome, facts={"requests": 9})) for each in rows)
    assert all(each.status == OK for each in rows)
    monkeypatch.setattr(disaggregate, "run_sweep", lambda *_: SimpleNamespace(rows=rows))
    hourly = {"2": together, "1p1d": apart}
    monkeypatch.setattr(disaggregate, "_hourly", lambda config, _: hourly[config.disaggregation.xpyd])
    no_runner: Any = None
    found = layouts_of(api.configure(None, slo=["ttft.p99=1s"], **LOAD), 2, no_runner)
    assert found.apart
    assert found.dollars == dollars


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layouts(), "needs a target to compare by"),
        (lambda: layouts("ttft.p99=1s", instances=1), "needs more instances"),
        (lambda: parse_axis("xpyd=auto"), "needs a number of instances"),
        (lambda: parse_axis("xpyd=auto:1"), "needs a number of instances"),
        (lambda: api.configure(None, xpyd="2p", **LOAD), "must be a number of instances of each side"),
        (lambda: api.configure(None, xpyd="2p1d", prefill_instances=1, **LOAD), "contradicts --xpyd"),
    ],
)
def test_what_cannot_be_compared_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def planned(**settings: Any) -> Plan:
    return blis.plan(
        model="llama-3.1-8b",
        gpu="h100",
        workload="chat",
        rate=4,
        num_requests=40,
        most_requests=400,
        slo="ttft.p99=5s",
        draws=0,
        tune=False,
        **settings,
    )


@pytest.mark.slow
def test_a_plan_chooses_among_layouts_and_prices_each_side() -> None:
    found = planned(
        vary={"xpyd": ["1p1d", "2p1d"], "decode_gpu": ["h100", "l40s"]}, prices={"h100": 3, "l40s": 1}
    )
    best = found.best
    assert (best.instances, best.gpus) == (2, 2)
    assert [(part.name, part.gpu, part.dollars_per_hour) for part in best.parts] == [
        ("prefill", "h100", 3.0),
        ("decode", "l40s", 1.0),
    ]
    assert best.dollars_per_hour == pytest.approx(4)
    assert "2 instances of llama-3.1-8b: 1 prefill on h100 TP1, 1 decode on l40s TP1" in repr(found)
    assert "    decode: 1 × l40s, $1.00 an hour" in repr(found)
    assert next(each.least for each in found.standings if each.point["decode_gpu"] == "l40s") == 2


def test_a_layout_has_its_number_of_instances() -> None:
    with pytest.raises(InputError, match="contradicts the instances of each side"):
        planned(vary={"xpyd": ["1p1d"]}, instances="1:2")


def test_layouts_are_an_axis() -> None:
    assert parse_axis("xpyd=1p1d,auto:3").values == ("1p1d", "3", "1p2d", "2p1d")
    assert parse_axis("prefill_instances=1:3").key == "disaggregation.prefill_instances"
    assert parse_axis("pd_link=nvlink,eth25").key == "disaggregation.link"


def test_a_layout_costs_the_price_of_a_gpu_an_hour_for_each_of_its_gpus() -> None:
    config = api.configure(model="qwen3-14b", gpu="h100", tp=2, num_instances=3)
    assert disaggregate._hourly(config, Prices({"h100": 2.5})) == 2.5 * 2 * 3
    assert disaggregate._hourly(config, None) is None
