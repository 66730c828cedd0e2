from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from record_builders import instance, record, table

from blis_py.errors import InputError
from blis_py.metrics import summarise
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.metrics.slo import GoodputTargets, parse_class_targets, parse_goodput, parse_slo

MS = 1_000_000


def run_of_four(**columns: Any) -> RunRecord:
    """TTFT 10, 10, 30, 10 ms; TPOT 10, 30, none, 10 ms; the last one is cut off by the end of the run."""
    ends = np.array([10, 20, 30, 40]) * MS
    return record(
        table([0, 0, 0, 0], slo_class=["critical", "critical", "batch", ""], **columns),
        [instance(ends)],
        [(0, [0, 1, 2]), (0, [0, 3]), (0, [2]), (0, [0, 1])],
        [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.COMPLETED, Outcome.RUNNING],
    )


def test_goodput_counts_requests_that_meet_every_target() -> None:
    found = summarise(run_of_four(), goodput=parse_goodput(["ttft:20", "tpot:20"]))["cluster"]["goodput"]
    assert found == {
        "requests_per_s": pytest.approx(1 / 0.040),
        "attainment": 0.25,
        "good": 1,
        "covered": 4,
        "attainment_by_target": {"ttft": 0.5, "tpot": 0.5},
    }


def test_a_limit_is_met_when_it_is_reached_exactly() -> None:
    found = summarise(run_of_four(), goodput=parse_goodput(["ttft:10"]))["cluster"]["goodput"]
    assert found["good"] == 2


def test_a_single_token_meets_any_tpot() -> None:
    found = summarise(run_of_four(), goodput=parse_goodput(["tpot:10"]))
    assert found["classes"]["batch"]["goodput"]["attainment"] == 1.0


def test_the_least_limit_is_one_too() -> None:
    found = summarise(run_of_four(slo_target_ns=[1, 0, 0, 0]))["cluster"]["goodput"]
    assert (found["covered"], found["good"]) == (1, 0)


def test_classes_without_targets_do_not_count() -> None:
    targets = parse_class_targets("ttft", "critical=15ms,batch=20ms")
    summary = summarise(run_of_four(), goodput=targets)
    assert summary["cluster"]["goodput"]["covered"] == 3
    assert summary["cluster"]["goodput"]["good"] == 2
    assert summary["classes"]["standard"]["goodput"]["attainment"] is None


def test_a_class_named_default_holds_for_classes_without_their_own() -> None:
    targets = parse_class_targets("e2e", "critical=35ms,default=100ms")
    summary = summarise(run_of_four(), goodput=targets)
    assert summary["classes"]["critical"]["goodput"]["good"] == 1
    assert summary["classes"]["batch"]["goodput"]["good"] == 1
    assert summary["cluster"]["goodput"]["covered"] == 4


def test_a_requests_own_target_replaces_the_ttft_limit_of_its_class() -> None:
    run = run_of_four(slo_target_ns=[5 * MS, 0, 0, 0])
    found = summarise(run, goodput=parse_goodput(["ttft:20"]))["classes"]["critical"]["goodput"]
    assert (found["good"], found["covered"]) == (1, 2)


def test_targets_of_the_workload_are_enough_for_goodput() -> None:
    found = summarise(run_of_four(slo_target_ns=[5 * MS, 15 * MS, 0, 0]))["cluster"]["goodput"]
    assert (found["good"], found["covered"]) == (1, 2)


def test_without_targets_there_is_no_goodput() -> None:
    assert summarise(run_of_four())["cluster"]["goodput"] is None


def test_the_more_specific_and_the_later_target_wins() -> None:
    base = parse_goodput(["ttft:500", "tpot:50"])
    both = base.merged(parse_class_targets("ttft", "critical=100ms")).merged(parse_goodput(["ttft:400"]))
    assert both.of_class("critical") == {"ttft": 100 * MS, "tpot": 50 * MS}
    assert both.of_class("batch") == {"ttft": 400 * MS, "tpot": 50 * MS}


def test_goodput_is_written_as_in_vllm() -> None:
    expected = GoodputTargets({"default": {"ttft": 500 * MS, "tpot": 50 * MS, "e2e": 5_000_500_000}})
    assert parse_goodput(["ttft:500", "tpot:50", "e2el:5000.5"]) == expected
    assert parse_goodput(["ttft:500 tpot:50 e2el:5000.5"]) == expected


@pytest.mark.parametrize(
    "pairs",
    [["ttft"], ["ttft=500"], ["latency:5"], ["ttft:fast"], ["ttft:-1"], ["ttft:0"], ["e2e:5", "e2el:6"]],
)
def test_a_wrong_goodput_target_is_refused(pairs: list[str]) -> None:
    with pytest.raises(InputError, match="--goodput: "):
        parse_goodput(pairs)


@pytest.mark.parametrize(
    "text", ["", "critical", "critical=", "critical=5", "=5ms", "a=1ms,a=2ms", "a=1ms,", "a=0ms", "a=-1s"]
)
def test_a_wrong_class_target_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--slo-ttft: "):
        parse_class_targets("ttft", text)


def test_slos_are_measured_and_judged() -> None:
    slos = ["ttft.p99=500ms", "critical.tpot.mean=15ms", "e2el.max=0.04s", "itl.p99.9=30000us"]
    answers = summarise(run_of_four(), slo=[parse_slo(text) for text in slos])["slo"]
    assert [answer["met"] for answer in answers] == [True, False, True, True]
    assert answers[1] == {
        "slo": "critical.tpot.mean=15ms",
        "slo_class": "critical",
        "metric": "tpot",
        "stat": "mean",
        "limit_ms": 15.0,
        "measured_ms": 20.0,
        "met": False,
    }
    assert answers[3]["measured_ms"] == pytest.approx(np.percentile([10, 10, 30], 99.9))


def test_an_unattainable_slo_is_missed_and_one_without_requests_is_open() -> None:
    slos = [parse_slo("standard.e2e.p50=1s"), parse_slo("background.e2e.p50=1s")]
    answers = summarise(run_of_four(), slo=slos)["slo"]
    assert [(a["measured_ms"], a["met"]) for a in answers] == [(None, False), (None, None)]


@pytest.mark.parametrize("limit", ["", "5", "5h", "-5ms", "0ms", "fast"])
def test_an_slo_needs_a_positive_limit_with_a_unit(limit: str) -> None:
    with pytest.raises(InputError, match="--slo: "):
        parse_slo(f"ttft.p99={limit}")


@pytest.mark.parametrize(
    "text",
    ["ttft", "ttft.p99", "ttft=5ms", "ttft.p101=5ms", "ttft.best=5ms", "speed.p50=5ms", "ttft.p99<5ms"],
)
def test_a_wrong_slo_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--slo: "):
        parse_slo(text)


def test_an_slo_class_that_no_request_has_is_a_slip() -> None:
    with pytest.raises(InputError, match=r"no request is of this SLO class.*critcal"):
        summarise(run_of_four(), slo=[parse_slo("critcal.ttft.p99=5ms")])
    with pytest.raises(InputError, match=r"no request is of this SLO class.*critcal"):
        summarise(run_of_four(), goodput=parse_class_targets("ttft", "critcal=5ms"))
