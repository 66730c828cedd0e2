"""The verdict on a run: whether the cluster keeps up with what it is offered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blis_py as blis
from blis_py.metrics.load import CLOSED, OVERLOADED, SATURATED, STABLE, TOO_SHORT
from blis_py.requests.table import RequestTable

LINEAR = {"gpu": {"step": 1e7}}
"""Every step takes 10 ms: with 4 at a time and 50 tokens each, eight requests are served per second."""
SERVER: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "latency_model": "linear",
    "linear": LINEAR,
    "max_num_seqs": 4,
    "output_tokens": 50,
    "output_tokens_stdev": 0,
    "timeout": None,
}


def load(**settings: Any) -> dict[str, Any]:
    verdict: dict[str, Any] = blis.run(**{**SERVER, **settings}).summary["load"]
    return verdict


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("rate", "verdict"), [(4, STABLE), (8.8, SATURATED), (16, SATURATED)])
def test_what_is_offered_is_compared_with_what_is_served(rate: float, verdict: str, seed: int) -> None:
    found = load(rate=rate, num_requests=6000, seed=seed)
    if found["verdict"] == OVERLOADED and verdict == STABLE:
        assert found["overloaded_s"] < 20
        return
    assert found["verdict"] == verdict, found
    assert found["offered_per_s"] == pytest.approx(rate, rel=0.06)
    assert found["served_per_s"] == pytest.approx(min(rate, 8), rel=0.06)
    if verdict == SATURATED:
        behind = found["offered_per_s"] - found["served_per_s"]
        assert found["backlog_growth_per_s"] == pytest.approx(behind, abs=0.1)


def test_a_burst_that_drains_is_no_saturation() -> None:
    found = load(rate=3, num_requests=2000, arrival="gamma", cv=6)
    assert found["verdict"] == OVERLOADED
    assert 10 < found["overloaded_s"] < 600


@pytest.mark.slow
def test_a_cluster_that_loses_requests_does_not_keep_up_however_long_the_rest_waits() -> None:
    """The backlog cannot grow, as patience ends before."""
    found = load(rate=16, num_requests=4000, timeout=1.0)
    assert found["verdict"] == SATURATED
    assert found["backlog_growth_per_s"] is None


def test_a_run_that_is_hardly_longer_than_its_requests_says_nothing() -> None:
    assert load(rate=4, num_requests=60)["verdict"] == TOO_SHORT
    assert load(rate=400, num_requests=90)["verdict"] == TOO_SHORT


def test_a_closed_loop_offers_what_is_served() -> None:
    found = load(concurrency=4, num_requests=200)
    assert found["verdict"] == CLOSED
    assert found["served_per_s"] == pytest.approx(8, rel=0.05)


def test_the_time_of_overload_counts_once_however_many_wait() -> None:
    """Forty at once on four places: the last ones begin after 9 half seconds, and a second is no overload."""
    from one_pool import simulate

    from blis_py.metrics.load import load as assess

    simulation = blis.build(**SERVER, num_requests=40, rate=1)
    at_once = np.zeros(40, dtype=np.int64)
    table = RequestTable.build(at_once, np.full(40, 10), np.full(40, 50))
    record = simulate(table, scheduler=simulation.scheduler, latency=simulation.latency)
    assert assess(record)["overloaded_s"] == pytest.approx(9 * 0.5 - 1, abs=0.05)


def test_the_verdict_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    from blis_py.report.table import print_summary

    print_summary(blis.run(**SERVER, rate=16, num_requests=2000).summary)
    assert capsys.readouterr().out.startswith("saturated: 15")


def test_a_short_run_with_a_queue_of_minutes_is_saturated() -> None:
    """Answers of 50 s never end within the arrivals, and the queue shows that they come too fast."""
    found = load(rate=20, num_requests=600, output_tokens=5000)
    assert found["verdict"] == SATURATED


def test_a_run_that_is_too_short_tells_how_many_requests_would_do() -> None:
    found = load(rate=4, num_requests=60)
    assert found["verdict"] == TOO_SHORT
    enough = load(rate=4, num_requests=found["requests_for_verdict"])
    assert enough["verdict"] != TOO_SHORT
