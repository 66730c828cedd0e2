"""Disaggregate or not: layouts of the same instances under one load, and reasons that are its figures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blis_py import api
from blis_py.errors import InputError
from blis_py.planning.axes import parse_axis
from blis_py.planning.disaggregate import Layouts, best_of, layouts_of
from blis_py.planning.executors import Serial
from blis_py.planning.job import JobOutcome
from blis_py.planning.runner import Runner
from blis_py.planning.store import Nowhere
from blis_py.planning.sweep import Row

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
    first, *reasons = found.lines()
    assert first.startswith(
        f"disaggregate: yes: {found.winner.point['xpyd']} against 4: meets 2 of 2 targets"
    )
    assert reasons[0].strip().startswith("itl p99"), "the largest gain first"
    assert not layouts("ttft.p99=400ms").apart


def row(layout: str, met: int, share: float) -> Row:
    keys = {"metric": "ttft", "limit_ms": 100.0, "measured_ms": 100 * share}
    slo = [{"slo": "ttft.p99=100ms", "met": number < met, **keys} for number in (0, 1)]
    return Row({"xpyd": layout}, 0, JobOutcome(slo=slo))


def test_more_targets_come_before_more_room() -> None:
    one, two, roomy = row("1p3d", 1, 0.2), row("2p2d", 2, 0.9), row("3p1d", 2, 0.8)
    assert best_of([one, two]) is two
    assert best_of([one, two, roomy]) is roomy


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


def test_layouts_are_an_axis() -> None:
    assert parse_axis("xpyd=1p1d,auto:3").values == ("1p1d", "3", "1p2d", "2p1d")
    assert parse_axis("prefill_instances=1:3").key == "disaggregation.prefill_instances"
    assert parse_axis("pd_link=nvlink,eth25").key == "disaggregation.link"
