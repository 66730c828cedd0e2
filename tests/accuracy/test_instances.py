"""Instances that the measured points imply are compared with those that the predictions imply."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS / "accuracy"))

from instances import DRAWS, HELD_OUT, Answer, Group, Point, answer, groups, highest, summary  # noqa: E402

from blis_py.config.models import RunConfig  # noqa: E402
from blis_py.planning.analysis import Case  # noqa: E402
from blis_py.planning.goal import Judgement, Requirement  # noqa: E402
from blis_py.planning.job import JobOutcome  # noqa: E402
from blis_py.planning.report_text import answer as answer_text  # noqa: E402
from blis_py.planning.result import Candidate, PlanResult  # noqa: E402
from blis_py.planning.uncertainty import Draw, Errors  # noqa: E402


def points(*ttft_ms: float) -> tuple[Point, ...]:
    return tuple(Point(2**i, ttft, 10.0 + 5 * i, 100) for i, ttft in enumerate(ttft_ms))


def test_the_highest_rate_lies_where_the_first_target_is_reached() -> None:
    low, high = points(100, 200)
    assert highest([low, high], 300, 100) == pytest.approx(high.per_s)
    assert highest([low, high], 2**0.5 * 100, 100) == pytest.approx((low.per_s + high.per_s) / 2)
    assert highest([low, high], 50, 100) is None


def test_a_prediction_that_is_twice_as_slow_needs_more_instances() -> None:
    measured = points(100, 150, 300)
    exact = answer(Group("same", measured, measured, True))
    assert exact.predicted == exact.implied
    slow = tuple(Point(p.concurrency, 1.5 * p.ttft_ms, 1.2 * p.tpot_ms, 100) for p in measured)
    assert (answer(Group("slow", measured, slow, True)).predicted or 99) > exact.implied


def test_the_committed_figures_follow_from_the_committed_points() -> None:
    rows = json.loads((BENCHMARKS / "results" / "real_engines.json").read_text())
    kept = json.loads((BENCHMARKS / "results" / "instances.json").read_text())
    assert summary([answer(group) for group in groups(rows)]) == pytest.approx(kept["summary"][HELD_OUT])


def committed() -> list[Answer]:
    """The committed groups whose points no measured point contradicts."""
    kept = json.loads((BENCHMARKS / "results" / "instances.json").read_text())
    return [each for each in (Answer(**group) for group in kept["groups"]) if each.consistent]


def test_nowhere_are_fewer_by_more_than_one_called_enough_without_a_number_that_nearly_is() -> None:
    """A plan says below 90 %, and names the number that holds in nine of ten draws, or that none does; this
    number is short by one at most, and in the share of cases that the guide quotes."""
    answers = committed()
    assert {each.set for each in answers} == {HELD_OUT, "inferencemax", "silicon"}
    few = [each for each in answers if each.predicted is not None and each.predicted < each.implied - 1]
    assert not [each.group for each in few if each.set == HELD_OUT]
    assert all(each.warned for each in few)
    assert all(each.at_90 is None or each.at_90 >= each.implied - 1 for each in few)


def test_every_group_that_is_short_by_more_than_one_carries_a_warning_that_is_read() -> None:
    """The plan of a group, with as many draws met as its confidence, warns in its text."""
    answers = committed()
    few = [each for each in answers if each.predicted is not None and each.predicted < each.implied - 1]
    assert few
    for each in few:
        assert "  Warning: below 90 %" in said(each.confidence or 1.0, each.predicted or 0), each.group


def said(confidence: float, instances: int) -> str:
    """The answer of a plan whose targets are met in this share of the draws."""
    met, missed = (
        Judgement(holds, (Requirement("tpot.p99", 1.0, 1.0, "ms", 0.0),)) for holds in (True, False)
    )
    best = Candidate({}, instances, RunConfig(), instances, None, met, JobOutcome())
    draws = [Case("draw", met if n < confidence * DRAWS else missed, JobOutcome()) for n in range(DRAWS)]
    errors = Errors((Draw(1.0),) * DRAWS, "measured runs", DRAWS)
    return answer_text(PlanResult(best, "GPUs", draws=tuple(draws), error=errors))


def test_the_guides_quote_the_committed_figures() -> None:
    kept = json.loads((BENCHMARKS / "results" / "instances.json").read_text())["summary"]
    rows = [kept[kind] for kind in (HELD_OUT, "inferencemax", "silicon")]
    docs = BENCHMARKS.parent / "docs"
    lines = (BENCHMARKS / "results" / "validation.md").read_text(encoding="utf-8").splitlines()
    quoted = [line for line in lines if "suffices in" in line]
    for row, line in zip(rows, quoted, strict=True):
        assert line.startswith(f"| {row['groups']:.0f} ")
        assert f"| {row['bias_instances']:+.1f}, {row['median_instances']:+.0f} |" in line
        assert f"| {row['within_one']:.0%} |".replace("%", " %") in line
        assert f"| {row['in_the_interval']:.0%} |".replace("%", " %") in line
        assert f"suffices in {row['enough_at_90']:.0%}".replace("%", " %") in line
    plan = " ".join((docs / "plan.md").read_text(encoding="utf-8").split())

    def between(name: str) -> str:
        least, most = (f"{100 * end(row[name] for row in rows):.0f}" for end in (min, max))
        return f"{least} to {most} %" if least != most else f"{most} %"

    assert f"on {sum(row['groups'] for row in rows):.0f} groups" in plan
    assert f"in {between('within_one')} of the groups" in plan
    assert f"contains it in {between('in_the_interval')}" in plan
    assert f"suffices in {between('enough_at_90')}" in plan


def test_the_target_that_limits_a_prediction_is_named_with_its_error() -> None:
    measured = points(100, 150, 300)
    late = tuple(Point(p.concurrency, 1.3 * p.ttft_ms, p.tpot_ms, 100) for p in measured)
    report = answer(Group("late", measured, late, True))
    assert report.short == "TTFT"
    assert report.error == pytest.approx(0.3)
