"""A load is sized for its steady state, not for few requests of it or the moment when all clients start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from formula_servers import outcome

import blis_py as blis
from blis_py.api import configure
from blis_py.metrics.load import TOO_SHORT
from blis_py.planning.goal import Goal
from blis_py.planning.job import Job, JobOutcome, Variation
from blis_py.planning.plan import Plan
from blis_py.planning.steady import is_enough, is_steady, requests_needed, steady_length
from blis_py.planning.worker import outcome_of, varied

LOOP: dict[str, Any] = {"model": "llama-3.1-8b", "concurrency": 16, "prompt_tokens": 500, "output_tokens": 8}
LOOP |= {"prompt_tokens_stdev": 256, "output_tokens_stdev": 256}
ONCE: dict[str, Any] = {"draws": 0, "workers": 1, "cache": False, "tune": False}


def planned(**settings: Any) -> Plan:
    return blis.plan(**LOOP | ONCE | settings, slo="ttft.p90=120ms", instances="1:4")


@pytest.mark.slow
def test_few_requests_need_no_more_instances_than_many() -> None:
    few, many = planned(num_requests=60), planned(num_requests=2000)
    assert few.best.instances == many.best.instances == 1
    measured = [plan.best.judgement.requirements[0].measured for plan in (few, many)]
    assert measured[0] == pytest.approx(measured[1], rel=0.01)
    assert "judged over 2,000 requests" in repr(few)
    assert "the 16 sent at once at the start would dominate the tail" in repr(few)
    assert not any("at once" in note for note in few.notes)
    assert "judged over" not in repr(many)


@pytest.mark.slow
def test_the_configuration_of_the_answer_meets_its_targets_when_it_is_run() -> None:
    found = planned(num_requests=60)
    assert found.config.workload.num_requests == 2000
    assert all(each["met"] for each in blis.run(found.config).summary["slo"])


@pytest.mark.slow
def test_an_answer_for_the_start_is_called_that_where_the_run_may_not_be_longer() -> None:
    found = planned(num_requests=60, most_requests=60)
    assert found.best.instances > 1
    (note,) = [note for note in found.notes if "at once" in note]
    assert note.startswith("16 of the 60 requests are sent at once at the start")
    assert (
        "in the steady state, from 2,000 requests, fewer instances may suffice: raise --most-requests" in note
    )


def facts(at_once: int, requests: int, stat: str = "p99", *, closed: bool = True) -> JobOutcome:
    return JobOutcome(
        slo=[{"stat": stat}], facts={"closed": closed, "at_once": at_once, "requests": requests}
    )


@pytest.mark.parametrize(
    ("at_once", "stat", "needed"),
    [(64, "p99", 25_600), (64, "p99.9", 256_000), (64, "p90", 2_600), (64, "mean", 6_400), (8, "p50", 2_000)],
)
def test_the_start_may_make_up_a_quarter_of_the_tail(at_once: int, stat: str, needed: int) -> None:
    assert requests_needed(facts(at_once, 200, stat), Goal()) == needed


def test_extremes_ask_for_no_length_of_their_own() -> None:
    assert requests_needed(facts(8, 200, "max"), Goal()) == requests_needed(facts(8, 200, "p50"), Goal())


def test_a_share_of_good_requests_has_a_tail_too() -> None:
    assert requests_needed(facts(64, 200, "p50"), Goal({"": 0.99})) == 25_600


def test_a_run_is_lengthened_as_far_as_it_may_be_and_only_in_closed_loops() -> None:
    assert steady_length(facts(64, 200), Goal()) == 128
    assert steady_length(facts(64, 200), Goal(most_extended=1_000)) == 5
    assert steady_length(facts(64, 30_000), Goal()) == 1
    assert steady_length(facts(0, 200, closed=False), Goal()) == 1
    assert is_steady(facts(64, 30_000), Goal())
    assert not is_steady(facts(64, 200), Goal())
    assert not is_steady(facts(0, 30_000, closed=False), Goal())


@pytest.mark.parametrize(
    ("more", "at_once"),
    [({}, 16), ({"num_requests": 9}, 9), ({"rate": 3}, 1), ({"closed_loops": "blis"}, 16)],
)
def test_clients_that_wait_for_a_rate_do_not_send_at_once(more: dict[str, Any], at_once: int) -> None:
    facts = outcome_of(varied(Job(configure(**{**LOOP, "num_requests": 20, **more}))).run()).facts
    assert facts["closed"]
    assert facts["at_once"] == at_once


def test_clients_of_blis_start_over_one_pause() -> None:
    config = configure(**LOOP, num_requests=20, closed_loops="blis", think_time_ms=50)
    assert outcome_of(varied(Job(config)).run()).facts["at_once"] == 0


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A vLLM benchmark result with four requests in flight."""
    path = tmp_path / "result.json"
    lists = '"input_lens": [100, 200, 300], "output_lens": [5, 6, 7], "ttfts": [0.1, 0.1, 0.1]'
    path.write_text(f'{{"max_concurrency": 2, "request_rate": "inf", {lists}, "itls": [[], [], []]}}')
    return path


def test_a_replayed_benchmark_of_a_closed_loop_is_repeated(report: Path) -> None:
    config = configure(model="llama-3.1-8b", trace=str(report))
    longer = varied(Job(config, Variation(length=4.0)))
    assert longer.table.prompt_tokens.tolist() == [100, 200, 300] * 4
    assert longer.loops is not None
    assert [part.rows for part in longer.loops.parts] == [slice(0, 12)]
    assert outcome_of(longer.run()).figures["requests.completed"] == 12


def test_a_trace_under_a_limit_of_concurrency_is_repeated(report: Path) -> None:
    config = configure(model="llama-3.1-8b", trace=str(report), concurrency=1)
    assert len(varied(Job(config, Variation(length=2.0))).table) == 6


def test_few_generated_requests_are_a_sample_and_recorded_ones_are_what_they_are() -> None:
    generated = JobOutcome(facts={"generated": True, "at_once": 0, "requests": 150})
    assert steady_length(generated, Goal()) == pytest.approx(2_000 / 150)
    assert steady_length(generated, Goal(most_requests=300)) == 2
    assert steady_length(JobOutcome(facts={"generated": False, "requests": 150}), Goal()) == 1
    assert not is_steady(JobOutcome(facts={"generated": True, "requests": 9_000}), Goal())


@pytest.mark.parametrize(
    ("requests", "verdict", "facts", "enough"),
    [
        (2000, "", {}, True),
        (1999, "", {}, False),
        (2000, TOO_SHORT, {}, False),
        (2200, "", {"generated": True, "dispersion": 11.0}, True),
        (2199, "", {"generated": True, "dispersion": 11.0}, False),
        (2000, "", {"dispersion": 11.0}, True),
        (2000, "", {"generated": True}, True),
    ],
)
def test_a_run_needs_two_thousand_requests_and_two_hundred_bursts(
    requests: int, verdict: str, facts: dict[str, Any], enough: bool
) -> None:
    assert is_enough(outcome(requests, verdict=verdict, **facts)) == enough


@pytest.mark.parametrize(
    ("at_once", "attainment", "needed"),
    [
        (1, {}, 2000),
        (10, {}, 4000),
        (5, {}, 2000),
        (8, {}, 3200),
        (10, {"": 0.995}, 8000),
        (10, {"": 1.0}, 4000),
    ],
)
def test_the_start_of_a_closed_loop_is_a_quarter_of_the_tail_at_most(
    at_once: int, attainment: dict[str, float], needed: int
) -> None:
    run = outcome(needed, closed=True, at_once=at_once)
    goal = Goal(attainment=attainment)
    assert requests_needed(run, goal) == needed
    assert is_steady(run, goal)
    assert not is_steady(outcome(needed - 1, closed=True, at_once=at_once), goal)
    assert not is_steady(outcome(needed), goal)


def test_a_run_is_as_long_as_its_kind_may_be() -> None:
    goal = Goal(most_requests=1000, most_extended=1500)
    assert steady_length(outcome(100, generated=True), goal) == 10
    assert steady_length(outcome(100, closed=True, at_once=1), goal) == 15
    assert steady_length(outcome(5000, generated=True), goal) == 1
    assert steady_length(outcome(0, generated=True), goal) == 1000
    assert steady_length(outcome(100), goal) == 1
