"""The verdict on a run: whether the cluster keeps up with what it is offered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record_builders import instance, record, table

import blis_py as blis
from blis_py.metrics.load import AT_ONCE, CLOSED, OVERLOADED, SATURATED, STABLE, TOO_SHORT
from blis_py.metrics.load import load as assess
from blis_py.metrics.record import Outcome, RunRecord
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
@pytest.mark.parametrize("seed", range(2))
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


def test_a_run_that_is_hardly_longer_than_its_requests_states_nothing() -> None:
    assert load(rate=4, num_requests=60)["verdict"] == TOO_SHORT
    assert load(rate=400, num_requests=90)["verdict"] == TOO_SHORT


def test_a_closed_loop_offers_what_is_served() -> None:
    found = load(concurrency=4, num_requests=200)
    assert found["verdict"] == CLOSED
    assert found["served_per_s"] == pytest.approx(8, rel=0.05)


def test_the_time_of_overload_counts_once_however_many_wait() -> None:
    """Forty at once on four places: the last ones begin after 9 half seconds, and a second is no overload."""
    from one_pool import simulate

    simulation = blis.build(**SERVER, num_requests=40, rate=1)
    at_once = np.zeros(40, dtype=np.int64)
    requests = RequestTable.build(at_once, np.full(40, 10), np.full(40, 50))
    found = simulate(requests, scheduler=simulation.scheduler, latency=simulation.latency)
    assert assess(found)["overloaded_s"] == pytest.approx(9 * 0.5 - 1, abs=0.05)


def test_a_backlog_that_follows_a_rising_rate_is_not_saturation(tmp_path: Path) -> None:
    """From 20/s to 60/s, where one instance serves 128/s: more are in service, and none takes longer. At four
    times the rate they do.
    """
    arrival_s = np.cumsum(1 / np.linspace(20, 60, 1000))
    rows = [f"{each:.6f},10,50" for each in arrival_s]
    trace = tmp_path / "ramp.csv"
    trace.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]) + "\n")
    server = {key: value for key, value in SERVER.items() if not key.startswith(("output", "timeout"))}
    slow, fast = (
        blis.run(**server | {"trace": str(trace), "max_num_seqs": 64}, rate=rate).summary["load"]
        for rate in (36, 140)
    )
    assert slow["backlog_growth_per_s"] > 0.01 * slow["offered_per_s"]
    assert slow["verdict"] == STABLE
    assert fast["verdict"] == SATURATED


def test_the_verdict_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    from blis_py.report.table import print_summary

    print_summary(blis.run(**SERVER, rate=16, num_requests=2000).summary)
    assert capsys.readouterr().out.startswith("saturated: 15")


def test_a_short_run_with_a_queue_of_minutes_is_saturated() -> None:
    """Answers of 50 s never end within the arrivals, and the queue shows that they come too fast."""
    found = load(rate=20, num_requests=600, output_tokens=5000)
    assert found["verdict"] == SATURATED


@pytest.mark.parametrize(
    "flags",
    [
        {"rate": 4, "num_requests": 60},
        {"rate": 10, "num_requests": 90, "output_tokens": 400, "max_num_seqs": 64},  # answers of 4 s, too
    ],
)
def test_a_run_that_is_too_short_states_how_many_requests_would_do(flags: dict[str, Any]) -> None:
    found = load(**flags)
    assert found["verdict"] == TOO_SHORT
    enough = load(**flags | {"num_requests": found["requests_for_verdict"]})
    assert enough["verdict"] != TOO_SHORT


def made(waits_s: Any, *, span_s: float = 100.0, requests: int = 120, service_s: float = 100.0) -> RunRecord:
    """Requests in even intervals; each waits, and is served, for so long.

    Args:
        waits_s: one for each third of the arrivals.
    """
    arrival_ns = (np.arange(requests) * span_s / (requests - 1) * 1e9).astype(np.int64)
    found = record(table(arrival_ns), [instance([10**12])], [(0, [0])] * requests)
    thirds = np.minimum(np.arange(requests) * 3 // requests, 2)
    found.visits.scheduled_ns = arrival_ns + (np.asarray(waits_s)[thirds] * 1e9).astype(np.int64)
    found.visits.finish_ns = found.visits.scheduled_ns + round(service_s * 1e9)
    found.end_ns = int(found.finish_ns.max())
    return found


@pytest.mark.parametrize(
    ("waits_s", "verdict"),
    [
        ((1, 5, 21), SATURATED),
        ((1, 5, 20), TOO_SHORT),
        ((5, 1, 30), TOO_SHORT),
        ((5, 5, 30), TOO_SHORT),
        ((1, 30, 25), TOO_SHORT),
        ((1, 30, 30), TOO_SHORT),
    ],
)
def test_a_short_run_is_saturated_where_waiting_grows_to_a_fifth_of_the_arrivals(
    waits_s: tuple[float, ...], verdict: str
) -> None:
    assert assess(made(waits_s))["verdict"] == verdict


@pytest.mark.parametrize(("waits_s", "verdict"), [((1, 2, 5), TOO_SHORT), ((1, 2, 5.1), SATURATED)])
def test_waits_of_less_than_five_seconds_are_no_backlog(waits_s: tuple[float, ...], verdict: str) -> None:
    assert assess(made(waits_s, span_s=10))["verdict"] == verdict


@pytest.mark.parametrize(("requests", "verdict"), [(99, TOO_SHORT), (100, SATURATED)])
def test_few_requests_show_no_backlog(requests: int, verdict: str) -> None:
    assert assess(made((1, 5, 30), requests=requests))["verdict"] == verdict


@pytest.mark.parametrize(("service_s", "verdict"), [(10.01, TOO_SHORT), (10, STABLE)])
def test_the_second_half_is_five_service_times_long(service_s: float, verdict: str) -> None:
    assert assess(made((0, 0, 0), service_s=service_s))["verdict"] == verdict


@pytest.mark.parametrize(("requests", "verdict"), [(98, TOO_SHORT), (99, STABLE)])
def test_the_second_half_has_fifty_requests_of_which_one_may_come_in_the_middle(
    requests: int, verdict: str
) -> None:
    assert assess(made((0, 0, 0), requests=requests, service_s=0.1))["verdict"] == verdict


@pytest.mark.parametrize(("lost", "verdict"), [(1, STABLE), (2, SATURATED)])
@pytest.mark.parametrize("how", [Outcome.TIMED_OUT, Outcome.REJECTED, Outcome.EVICTED])
def test_no_more_than_a_hundredth_of_the_second_half_may_time_out(
    lost: int, verdict: str, how: Outcome
) -> None:
    found = made((0, 0, 0), requests=200, service_s=0.1)
    found.visits.outcome[:100:7] = how
    found.visits.outcome[150 : 150 + lost] = how
    assert assess(found)["verdict"] == verdict


def test_rates_are_those_of_the_second_half() -> None:
    """101 arrivals in 100 s, each served for 9.5 s: those from the 41st on end in it."""
    found = assess(made((0, 0, 0), requests=101, service_s=9.5))
    assert found["offered_per_s"] == pytest.approx(1.0)
    assert found["served_per_s"] == pytest.approx(1.0)
    late = made((0, 0, 0), requests=101, service_s=9.5)
    late.visits.finish_ns[60:] += 10**12
    assert assess(late)["served_per_s"] == pytest.approx((60 - 41) / 50)


def test_requests_of_closed_loops_are_counted_beside_the_verdict() -> None:
    found = made((0, 0, 0), requests=200, service_s=0.1)
    due_ns = np.full(200, -1)
    due_ns[::4] = found.table.arrival_ns[::4]
    mixed = replace(found, table=replace(found.table, due_ns=due_ns))
    assert assess(mixed)["closed_loop_requests"] == 50
    assert assess(mixed)["verdict"] == STABLE
    assert assess(mixed)["offered_per_s"] == pytest.approx(0.75 * assess(found)["offered_per_s"], rel=0.02)
    closed = replace(found, table=replace(found.table, due_ns=found.table.arrival_ns))
    assert assess(closed)["verdict"] == CLOSED
    assert "closed_loop_requests" not in assess(closed)
    assert assess(closed)["served_per_s"] == pytest.approx(200 / 100.1)


def test_a_short_saturated_run_serves_what_it_served_until_its_end() -> None:
    """Nothing ends before the last arrival, and yet 120 requests are served, in 100 + 21 + 100 s."""
    assert assess(made((1, 5, 21)))["served_per_s"] == pytest.approx(120 / 221, rel=1e-3)


def test_a_closed_loop_in_which_nothing_ends_has_no_rates() -> None:
    requests = table([0, 1], due_ns=np.array([0, 1]))
    none_ends = record(requests, [instance([5])], [(0, []), (0, [])], [Outcome.RUNNING] * 2)
    assert assess(none_ends)["verdict"] == CLOSED
    assert (assess(none_ends)["offered_per_s"], assess(none_ends)["served_per_s"]) == (0.0, 0.0)


def test_the_first_third_of_the_arrivals_begins_with_the_first_of_them() -> None:
    """One request, a third of the time without any, and then all others, which wait ever longer."""
    arrivals = np.concatenate(([0], np.linspace(30e9, 90e9, 119).astype(np.int64)))
    waits = np.where(arrivals < 60e9, 10, 40) * 10**9
    waits[0] = 0
    run = record(table(arrivals), [instance([1])], [(0, []) for _ in arrivals])
    run.visits.scheduled_ns[:] = arrivals + waits
    run.visits.finish_ns[:] = run.visits.scheduled_ns + 100 * 10**9
    assert assess(run)["verdict"] == SATURATED


@pytest.mark.parametrize(("late", "verdict"), [(20, STABLE), (21, SATURATED)])
def test_a_backlog_that_grows_by_a_hundredth_of_what_is_offered_is_saturation(
    late: int, verdict: str
) -> None:
    """Of 2,010 requests in the second half: 20 more at its end are less than a hundredth of those offered,
    and more than one of those served."""
    half = 2010
    arrival_ns = np.arange(2 * half + 1) * 10**9
    run = record(table(arrival_ns), [instance([1])], [(0, [])] * len(arrival_ns))
    delay_ns = np.maximum(np.arange(-half, half + 1), 0) * (late * 10**9 // (half - late))
    run.visits.finish_ns[:] = arrival_ns + 10**8 + delay_ns
    run.visits.scheduled_ns[:] = run.visits.finish_ns - 10**7
    run.end_ns = int(run.finish_ns.max())
    found = assess(run)
    assert found["offered_per_s"] == 1.0
    assert found["served_per_s"] * half == pytest.approx(half - late, abs=1)
    assert found["verdict"] in ((verdict, OVERLOADED) if verdict == STABLE else (verdict,))


def test_a_horizon_that_leaves_most_requests_queued_is_saturation() -> None:
    result = blis.run(model="qwen3-14b", rate=60, num_requests=3000, horizon="10s")
    assert result.summary["load"]["verdict"] == "saturated"


def test_a_cut_run_at_twice_the_capacity_is_saturated() -> None:
    assert load(rate=16, num_requests=3000, horizon="30s")["verdict"] == SATURATED


def test_requests_that_all_come_at_once_have_no_rate_to_keep_up_with() -> None:
    at_once = record(table([0] * 60), [instance([5])], [(0, [0])] * 60)
    assert assess(at_once)["verdict"] == AT_ONCE
    assert "requests_for_verdict" not in assess(at_once)


def test_a_single_request_has_no_rate_to_keep_up_with(capsys: pytest.CaptureFixture[str]) -> None:
    from blis_py.report.table import print_summary

    one = blis.run(**SERVER, num_requests=1)
    assert one.summary["load"]["verdict"] == AT_ONCE
    print_summary(one.summary)
    assert capsys.readouterr().out.startswith("a single request: no rate to keep up with")


@pytest.mark.parametrize(("apart_ns", "named"), [(1, False), (1000, False), (10**6, True), (10**9, True)])
def test_requests_that_come_nearly_at_once_name_no_absurd_number(apart_ns: int, named: bool) -> None:
    run = record(table([0, apart_ns]), [instance([5])], [(0, [0])] * 2)
    run.visits.scheduled_ns[:] = 0
    run.visits.finish_ns[:] = 10**9
    found = assess(run)
    assert found["verdict"] == TOO_SHORT
    assert ("requests_for_verdict" in found) == named


def test_a_closed_loop_with_a_rate_reports_how_late_its_clients_send() -> None:
    """One at a time, half a second each, of ten requests per second."""
    found = load(concurrency=1, rate=10, num_requests=40, arrival="constant")
    assert found["verdict"] == CLOSED
    assert found["offered_per_s"] == pytest.approx(10, rel=0.05)
    assert found["served_per_s"] == pytest.approx(2, rel=0.05)
    assert found["client_wait_ms"] == pytest.approx(39 / 2 * 400, rel=0.05)
