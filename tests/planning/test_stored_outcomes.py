"""Outcomes that are kept: what is taken back, and what is of another shape; layouts that are compared."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from blis_py.api import configure
from blis_py.errors import InputError
from blis_py.planning.disaggregate import Layouts, _kind, _share, _tightest, best_of, layouts_of
from blis_py.planning.job import AS_IT_IS, FINE, HOPELESS, Job, JobOutcome, Variation, outcome_from
from blis_py.planning.prices import Prices
from blis_py.planning.sweep import Row

SLO = {
    **{"slo": "ttft.p99=100ms", "slo_class": None, "metric": "ttft", "stat": "p99"},
    **{"limit_ms": 100.0, "measured_ms": 70.0, "met": True},
}
FACTS = {
    **{"scheduler": {}, "capacity": "c", "models": "m", "provenance": "p", "notes": ["n"]},
    **{"requests": 3, "at_once": 0, "span_s": 1.5, "offered_per_s": None},
}
WHOLE = JobOutcome({"a": 1.0, "b": None}, {"x": {"attainment": 1.0}}, [SLO], "keeps up", FACTS)


@pytest.mark.parametrize("early", [None, HOPELESS, FINE])
def test_an_outcome_is_taken_back_as_it_was(early: str | None) -> None:
    kept = replace(WHOLE, early_stop=early)
    assert outcome_from(asdict(kept)) == kept


@pytest.mark.parametrize(
    "change",
    [
        {"figures": {"a": "1"}},
        {"figures": [1]},
        {"classes": {"x": {"attainment": "1"}}},
        {"classes": {"x": [1]}},
        {"classes": [1]},
        {"slo": [SLO | {"slo": 3}]},
        {"slo": [SLO | {"met": "yes"}]},
        {"slo": [SLO | {"measured_ms": "70"}]},
        {"slo": [SLO | {"limit_ms": "100"}]},
        {"slo": [SLO | {"limit_ms": None}]},
        {"slo": [SLO | {"metric": "nosuch"}]},
        {"slo": [{"slo": "x"}]},
        {"verdict": 3},
        {"facts": FACTS | {"scheduler": []}},
        *({"facts": FACTS | {name: 3}} for name in ("capacity", "models", "provenance")),
        {"facts": FACTS | {"notes": [3]}},
        *({"facts": FACTS | {name: "3"}} for name in ("requests", "at_once", "span_s", "offered_per_s")),
        {"facts": {name: value for name, value in FACTS.items() if name != "span_s"}},
        {"facts": []},
        {"early_stop": "other"},
        {"refused": "r"},
        {"failed": "f"},
        {"other": 1},
    ],
)
def test_an_outcome_of_another_shape_is_none(change: dict[str, Any]) -> None:
    with pytest.raises((TypeError, LookupError, ValueError)):
        outcome_from(asdict(WHOLE) | change)


def test_a_job_is_named_by_all_that_decides_it() -> None:
    config = configure(model="llama-3.1-8b", num_requests=5)
    plain = Job(config).as_dict()
    assert plain["stops_at"] is None
    assert plain["variation"] == asdict(AS_IT_IS)
    assert Job(config, stops_at=(HOPELESS,), max_lost=0.5).as_dict()["stops_at"] == [HOPELESS, 0.5]
    assert Job(config, Variation(rate=2.0)).as_dict()["variation"]["rate"] == 2.0
    assert Job(replace(config, given=None)).as_dict() == plain
    assert (WHOLE.ran, JobOutcome(refused="r").ran, JobOutcome(failed="f").ran) == (True, False, False)


# -- together or apart -------------------------------------------------------------------------------------


def row(xpyd: str, *measured: float | None, **figures: float) -> Row:
    """A layout with targets of 100 ms."""
    slo = [
        SLO | {"slo": f"ttft.p{place}=100ms", "measured_ms": each, "met": each is not None and each <= 100}
        for place, each in enumerate(measured, start=90)
    ]
    named = {name.replace("__", "."): value for name, value in figures.items()}
    return Row({"xpyd": xpyd}, 0, JobOutcome(figures=dict(named), slo=slo))


def test_the_best_layout_meets_most_targets_and_leaves_most_room() -> None:
    rows = [row("2", 90, 120), row("1p1d", 99, 100), row("1p2d", 99, 90), row("2p1d", 10, None)]
    assert best_of(rows).point["xpyd"] == "1p2d"
    assert [_tightest(each) for each in rows] == [1.2, 1.0, 0.99, float("inf")]
    assert _share(SLO) == 0.7
    assert _tightest(row("2")) == 0.0
    kinds = [_kind(row(name)) for name in ("4", "1p3d")]
    assert kinds == ["4 instances that do both", "1 prefill and 3 decode instances"]


def test_layouts_as_good_as_each_other_stay_together() -> None:
    assert not Layouts((), row("2", 50), row("1p1d", 50)).apart
    found = Layouts((), row("2", 50), row("1p1d", 49.9))
    assert found.apart
    assert (found.winner.point["xpyd"], found.loser.point["xpyd"]) == ("1p1d", "2")


def test_gains_and_costs_are_notable_differences_the_largest_first() -> None:
    together = row(
        "2", 60, ttft_ms__mean=100, ttft_ms__p99=100, itl_ms__mean=10, itl_ms__p99=10, e2e_ms__mean=0
    )
    apart = row(
        "1p1d", 50, ttft_ms__mean=95, ttft_ms__p99=50, itl_ms__mean=20, itl_ms__p99=10.4, e2e_ms__mean=5
    )
    found = Layouts((together, apart), together, apart)
    assert found.gains == ["p99 TTFT 50.0 instead of 100.0 ms", "mean TTFT 95.0 instead of 100.0 ms"]
    assert found.costs == ["mean ITL 20.0 instead of 10.0 ms"]
    lines = found.lines()
    assert lines[0] == (
        "Disaggregate: yes. 1 prefill and 1 decode instances meet 1 of 1 target, 2 instances that do both 1."
    )
    assert lines[1].startswith(
        "  why: 1 prefill and 1 decode instances leave more room: at most 50% of a limit"
    )
    assert lines[2:4] == [f"  gains: {', '.join(found.gains)}", f"  costs: {found.costs[0]}"]
    assert lines[-1] == "  targets met, and the largest share of a limit: 1p1d 1 (50%), 2 1 (60%)"
    priced = [replace(found, dollars=(each, 4.0)).lines() for each in (5.0, 4.0)]
    assert ["price" in " ".join(each) for each in priced] == [True, False]
    assert "  price: $5.00 an hour instead of $4.00" in priced[0]
    refused = Row({"xpyd": "3p1d"}, 0, JobOutcome(refused="r"))
    assert replace(found, rows=(*found.rows, refused)).lines()[-1] == "  cannot be run: 3p1d"
    summary = replace(found, dollars=(1.0, 2.0)).summary()
    assert (summary["disaggregate"], summary["dollars_per_hour"]) == (True, [1.0, 2.0])
    assert summary["best"] == {"together": "2", "apart": "1p1d"}
    assert "dollars_per_hour" not in found.summary()


def test_a_target_that_one_kind_misses_is_the_reason() -> None:
    two = Layouts((), row("2", 50, 130), row("1p1d", 60, 70))
    assert two.lines()[0].endswith("meet 2 of 2 targets, 2 instances that do both 1.")
    assert two.why.startswith("2 instances that do both miss p91 TTFT 130 ms (target 100 ms); ")


class Runner:
    """A runner by the layout of a job."""

    done = 0

    def __init__(self, outcome_of: Any) -> None:
        self._outcome_of = outcome_of

    def run(self, jobs: Any, note: Any) -> list[Any]:
        for at, job in enumerate(jobs):
            note(at, self._outcome_of("p" in str(job.config.disaggregation.xpyd)), stored=False)
        return []


def test_all_layouts_of_the_instances_are_run_and_priced() -> None:
    config = configure(model="llama-3.1-8b", num_requests=5, slo=["ttft.p99=100ms"])
    runner: Any = Runner(lambda apart: replace(WHOLE, slo=[SLO | {"measured_ms": 50.0 if apart else 60.0}]))
    found = layouts_of(config, 3, runner, Prices({"h100": 2.0}))
    assert [each.point["xpyd"] for each in found.rows] == ["3", "1p2d", "2p1d"]
    assert found.apart
    assert found.dollars == (6.0, 6.0)
    assert layouts_of(config, 3, runner).dollars is None
    unknown = replace(config, gpu="no such GPU")
    assert layouts_of(unknown, 2, runner, Prices({"h100": 2.0}, bundled=False)).dollars is None


@pytest.mark.parametrize(
    ("instances", "slo", "fails", "message"),
    [
        (1, ["ttft.p99=1s"], None, "needs more instances"),
        (2, [], None, "needs a target to compare by"),
        (2, ["ttft.p99=1s"], True, "no layout with prefill and decode apart can be run: r"),
        (2, ["ttft.p99=1s"], False, "no layout with instances that do both can be run: r"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    instances: int, slo: list[str], fails: bool | None, message: str
) -> None:
    runner: Any = Runner(lambda apart: JobOutcome(refused="r") if apart == fails else WHOLE)
    with pytest.raises(InputError, match=message):
        layouts_of(configure(model="llama-3.1-8b", num_requests=5, slo=slo), instances, runner)
