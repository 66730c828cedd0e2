"""What the first part of the arrivals says is true of the whole, or is looked at again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blis_py.api import configure
from blis_py.planning import worker
from blis_py.planning.goal import Goal
from blis_py.planning.job import FINE, HOPELESS, Job, JobOutcome

GOAL = Goal()
LOAD: dict[str, Any] = {"model": "llama-3.1-8b", "num_requests": 1200, "output_tokens": 64}


def outcome(job: Job) -> JobOutcome:
    return worker.run(worker.pack(job, None))


@pytest.mark.slow
@pytest.mark.parametrize(
    "slo", ["ttft.p99=100ms", "ttft.p95=60ms", "ttft.mean=9ms", "scheduling_delay.max=90ms"]
)
def test_what_is_hopeless_misses_its_target_in_the_whole_run(slo: str) -> None:
    found = []
    for rate in (40, 80, 160, 320):
        job = Job(configure(**LOAD, rate=rate, slo=slo), stops_at=(HOPELESS, FINE))
        early = outcome(job).early
        whole = GOAL.judge(outcome(replace(job, stops_at=())))
        found.append(early)
        if early == HOPELESS:
            assert not whole.holds
    assert HOPELESS in found


@pytest.mark.slow
def test_a_part_that_is_easy_says_so_and_the_whole_is_only_then_left_out() -> None:
    easy = Job(configure(**LOAD, rate=10, num_instances=4, slo="ttft.p99=5s tpot.p99=1s"), stops_at=(FINE,))
    assert outcome(easy).early == FINE
    assert outcome(replace(easy, stops_at=(HOPELESS,))).figures == outcome(replace(easy, stops_at=())).figures
    tight = replace(easy, config=configure(**LOAD, rate=10, num_instances=4, slo="ttft.p99=30ms"))
    assert outcome(tight).early is None


@pytest.mark.parametrize("setting", [{"concurrency": 8}, {"horizon": "20s"}, {"num_requests": 100}])
def test_runs_that_have_no_first_part_are_run_whole(setting: dict[str, Any]) -> None:
    config = configure(**{**LOAD, "rate": 300, "slo": "ttft.max=1ms"} | setting)
    assert outcome(Job(config, stops_at=(HOPELESS, FINE))).early is None


def test_requests_that_may_be_lost_do_not_make_it_hopeless() -> None:
    config = configure(**LOAD, rate=100, slo="ttft.max=60ms")
    job = Job(config, stops_at=(HOPELESS,))
    assert outcome(job).early == HOPELESS
    assert outcome(replace(job, max_lost=0.5)).early is None
