"""Figures of small records, by hand: scores, waits at a gateway, costs, verdicts of detectors, reuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from record_builders import instance, record, table

from blis_py.errors import InputError
from blis_py.metrics.detectors import BACKLOGGED, OVERLOADED, STABLE, DetectorSettings, Event, detect
from blis_py.metrics.distribution import Distribution, Tally, statistics
from blis_py.metrics.fitness import fitness, parse_weights
from blis_py.metrics.load import (
    LATE_NS,
    SATURATED,
    _backlog,
    _end_ns,
    _needed,
    _overloaded_s,
    _rates,
    _slowdown,
    _unserved,
    load,
)
from blis_py.metrics.load import OVERLOADED as OVERLOADED_AT_TIMES
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.metrics.registry import METRICS, labels
from blis_py.metrics.reuse import _next_uses, _Tree
from blis_py.metrics.steps_table import StepsTable
from blis_py.metrics.summary import _jain, _pools, summarise
from blis_py.metrics.visits import Onward, Visits

SECOND = 10**9


def run(**fields: Any) -> RunRecord:
    """Two requests on two instances, answered after one and two steps of a second."""
    one, other = instance([SECOND, 2 * SECOND]), instance([SECOND])
    return record(table([0, 0]), [one, other], [(0, [0, 1]), (1, [0])], **fields)


# -- scores ------------------------------------------------------------------------------------------------


def test_a_score_is_the_weighted_sum_of_rates_and_latencies() -> None:
    found = fitness(run(), {"throughput": 2.0, "tokens_per_sec": 0.5, "mean_ttft": 1.0, "p99_e2e": 3.0})
    parts = {
        "throughput": 1 / (1 + 100),
        "tokens_per_sec": 1.5 / (1.5 + 10_000),
        "mean_ttft": 1 / 1001,
        "p99_e2e": 1 / (1 + 1990),
    }
    assert found == pytest.approx(
        {
            **parts,
            "score": 2 * parts["throughput"]
            + 0.5 * parts["tokens_per_sec"]
            + parts["mean_ttft"]
            + 3 * parts["p99_e2e"],
        }
    )


def test_a_run_without_steps_and_answers_scores_nothing() -> None:
    idle = record(table([0]), [instance([])], [None])
    assert fitness(idle, {"throughput": 1.0, "mean_ttft": 1.0}) == {
        **{"score": 0.0, "throughput": 0.0, "mean_ttft": 0.0}
    }


@pytest.mark.parametrize("text", ["throughput:-1", "throughput:inf", "throughput:nan", "throughput:x"])
def test_a_weight_is_a_number_from_nothing_on(text: str) -> None:
    assert parse_weights("throughput:0,mean_e2e: 2") == {"throughput": 0.0, "mean_e2e": 2.0}
    with pytest.raises(InputError, match="must be a number, not negative"):
        parse_weights(text)


@pytest.mark.parametrize("text", ["throughput", "nosuch:1", "throughput:1,throughput:2", ""])
def test_a_weight_names_a_component_once(text: str) -> None:
    with pytest.raises(InputError, match="not a weight"):
        parse_weights(text)


# -- summaries ---------------------------------------------------------------------------------------------


def test_waits_at_a_gateway_are_those_of_queued_requests() -> None:
    """One was sent at once, one waited 3 ms, one waits there still, one in an instance; one was evicted."""
    outcomes = [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.QUEUED, Outcome.QUEUED, Outcome.EVICTED]
    emitted: Any = [(0, [0]), (0, [1]), None, (0, []), (0, [])]
    found = record(table([0] * 5), [instance([SECOND, 2 * SECOND])], emitted, outcomes)
    found.gateway_ns = np.array([0, 3_000_000, 9_000_000, 6_000_000, -1])
    gateway = summarise(found)["gateway"]
    assert (gateway["waited"], gateway["still_waiting"], gateway["evicted"]) == (3, 1, 1)
    assert (gateway["wait_ms"]["count"], gateway["wait_ms"]["mean"]) == (4, 4.5)


def test_a_run_costs_the_hours_of_its_instances() -> None:
    found = run()
    found.instances[0].price_per_hour, found.instances[1].price_per_hour = 3600.0, 7200.0
    found.instances[1].added_ns, found.instances[1].gone_ns = SECOND // 2, SECOND
    assert summarise(found)["cluster"]["cost"] == pytest.approx(2 * 1.0 + 0.5 * 2.0)
    found.instances[0].price_per_hour = None
    assert "cost" not in summarise(found)["cluster"]


def test_output_per_instance_and_gpu_counts_instances_while_they_live() -> None:
    found = run()
    found.instances[0].gpus, found.instances[1].gpus = 4, 2
    cluster = summarise(found)["cluster"]
    assert cluster["output_tokens_per_s_per_instance"] == pytest.approx(1.5 / 2)
    assert cluster["output_tokens_per_s_per_gpu"] == pytest.approx(1.5 / 6)
    found.instances[1].gone_ns = SECOND
    cluster = summarise(found)["cluster"]
    assert cluster["output_tokens_per_s_per_instance"] == pytest.approx(1.5 / 1.5)
    assert cluster["output_tokens_per_s_per_gpu"] == pytest.approx(1.5 / 5)


def test_pools_are_named_where_there_are_several() -> None:
    several: Any = [SimpleNamespace(pool=name) for name in ("a", "b", "a")]
    assert _pools(several) == {"a": [0, 2], "b": [1]}
    assert _pools(several[::2]) == {}


@pytest.mark.parametrize(("shares", "index"), [([1, 1], 1.0), ([1, 0], 0.5), ([3, 1], 0.8)])
def test_fairness_is_the_index_of_jain(shares: list[int], index: float) -> None:
    assert _jain(shares) == pytest.approx(index)


def test_labels_are_of_all_metrics_or_of_some() -> None:
    assert labels() == {metric.key: metric.label for metric in METRICS.values()}
    assert labels([METRICS["ttft"]]) == {METRICS["ttft"].key: METRICS["ttft"].label}


def test_equal_values_are_counted_together_whenever_they_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tally, "_MAX_PARTS", 2)
    tally = Tally()
    for _ in range(4):
        tally.add(np.array([5, 1, 5]), np.array([2, 1, 1]))
    found = tally.distribution()
    assert (found.count, found.stat("mean"), found.stat("max")) == (16, 4.0, 5)
    assert len(tally._values) == 1
    assert statistics(Distribution.of(np.zeros(0, np.int64)))["mean"] is None


# -- tables of steps ---------------------------------------------------------------------------------------


def test_the_column_that_is_there_twice_is_named() -> None:
    with pytest.raises(InputError, match="two columns of the steps table") as caught:
        StepsTable(["a", "b", "c", "b"])
    assert caught.value.value == "b"


# -- load --------------------------------------------------------------------------------------------------


def ended(arrival_s: list[float], finish_s: list[float], outcome: list[Outcome] | None = None) -> RunRecord:
    """Requests of one token each, by their ends; -1 = none."""
    rows = len(arrival_s)
    found = record(table(np.array(arrival_s) * SECOND), [instance([SECOND])], [(0, [0])] * rows)
    found.visits.finish_ns[:] = [int(each * SECOND) if each >= 0 else -1 for each in finish_s]
    found.visits.scheduled_ns[:] = found.table.arrival_ns
    if outcome is not None:
        found.visits.outcome[:] = outcome
    return found


def test_rates_are_of_what_comes_and_ends_behind_the_begin_and_up_to_the_end() -> None:
    outcomes = [Outcome.LENGTH_CAPPED, Outcome.COMPLETED, Outcome.TIMED_OUT, Outcome.COMPLETED]
    found = ended([1, 2, 3, 4], [2, 4, 3, 5], outcomes)
    assert _rates(found, SECOND, 4 * SECOND) == pytest.approx((1.0, 2 / 3))
    assert _rates(found, SECOND, SECOND) == (0.0, 0.0)
    assert _rates(found, 2 * SECOND, 4 * SECOND) == (1.0, 0.5)
    assert _end_ns(found) == 5 * SECOND
    assert _end_ns(ended([], [])) == 0


@pytest.mark.parametrize(
    ("requests", "factor", "needed"), [(1, 1, 2), (60, 1.05, 95), (60, 1.2, 110), (0, 1, 0)]
)
def test_requests_for_a_verdict_are_named_in_two_digits(requests: int, factor: float, needed: int) -> None:
    assert _needed(requests, factor) == {"requests_for_verdict": needed}


@pytest.mark.parametrize(("left", "verdict"), [(3, OVERLOADED_AT_TIMES), (4, SATURATED)])
def test_a_backlog_grows_from_a_hundredth_of_the_arrivals_on(left: int, verdict: str) -> None:
    """Forty arrive each second; of the 400 of the last ten seconds some are left when the last one comes, and
    an early one waited for two seconds."""
    arrival_s = np.arange(801) / 40
    finish_s = arrival_s + 0.005
    finish_s[425 : 425 + 100 * left : 100] = 30
    found = ended(list(arrival_s), list(finish_s))
    found.visits.scheduled_ns[1] += 2 * SECOND
    found.visits.finish_ns[1] += 2 * SECOND
    found.end_ns = 30 * SECOND
    summary = load(found)
    assert summary["verdict"] == verdict
    assert summary["backlog_growth_per_s"] == left / 10
    assert summary["offered_per_s"] == 40


def test_the_backlog_is_what_has_come_and_not_ended() -> None:
    found = ended([1, 2, 3], [2, 5, -1])
    at = np.array([0.5, 1, 2, 3, 5, 9]) * SECOND
    assert _backlog(found, at).tolist() == [0, 1, 1, 2, 1, 1]


def test_requests_without_an_answer_are_unserved() -> None:
    lost = [Outcome.TIMED_OUT, Outcome.REJECTED, Outcome.EVICTED, Outcome.COMPLETED, Outcome.UNSERVABLE]
    assert _unserved(np.array(lost, dtype=np.int8)) == pytest.approx(3 / 5)


def test_the_slowdown_compares_halves_by_their_tokens() -> None:
    """From 0 to 4 s: 1 s for 4 tokens, and again; then 3 s for 4, and 5 s up to the end of the run."""
    found = ended([0, 1, 2, 4], [1, 2, 5, -1])
    found.end_ns = 9 * SECOND
    assert _slowdown(found, 0, 4 * SECOND) == pytest.approx((8 / 8) / (2 / 8))
    assert _slowdown(found, SECOND, 4 * SECOND) == pytest.approx((5 / 4) / (4 / 8))


def test_overload_is_the_time_during_which_any_request_waits_too_long() -> None:
    """A second is not too long: from 1 to 8 s, and from 11 to 16 s."""
    assert LATE_NS == SECOND
    found = ended([0, 1, 10, 11, 30], [40] * 5)
    found.visits.enqueue_ns[:] = found.table.arrival_ns
    found.visits.scheduled_ns[:] = np.array([7, 8, 16, 16, 31]) * SECOND
    assert _overloaded_s(found) == 7 + 5
    found.gateway_ns = np.array([0, 0, SECOND, -1, -1])  # from 10 s on
    assert _overloaded_s(found) == 7 + 6
    found.visits.scheduled_ns[0] = -1  # it was given up at 40 s
    assert _overloaded_s(found) == 39
    found.visits.finish_ns[0], found.end_ns = -1, 20 * SECOND
    assert _overloaded_s(found) == 19
    found.visits.enqueue_ns[:] = -1
    assert _overloaded_s(found) == 0


# -- detectors ---------------------------------------------------------------------------------------------


def drift(windows: list[tuple[int, int]]) -> str:
    """The last level after so many arrivals and ends in each window of a second."""
    events = [
        Event(window * SECOND + place, place < come, None if place < come else 10)
        for window, (come, go) in enumerate(windows)
        for place in range(come + go)
    ]
    found = detect(events, ["backlog-drift"], DetectorSettings(window_ns=SECOND), SECOND)
    return found.findings["backlog-drift"][-1].level


@pytest.mark.parametrize(
    ("windows", "level"),
    [
        ([(2, 0), (1, 1), (1, 0)], STABLE),  # half a request a window, of four: just the noise
        ([(3, 1), (1, 0)], BACKLOGGED),
        ([(8, 4), (1, 0)], BACKLOGGED),  # one a window, of nine: three times the noise
        ([(7, 3), (2, 0)], OVERLOADED),
        ([(5, 0)], STABLE),
    ],
)
def test_a_drift_is_one_above_the_noise_and_an_overload_above_three_times_of_it(
    windows: list[tuple[int, int]], level: str
) -> None:
    assert drift(windows) == level


# -- reuse -------------------------------------------------------------------------------------------------


def test_the_next_use_of_a_piece_is_the_request_that_finds_it_before_another_computes_it() -> None:
    """The first and the last find piece 0 and compute piece 1; the one in between finds both."""
    split = {0: ([0], [1]), 1: ([0, 1], [])}
    paths: Any = SimpleNamespace(of_kind=split.__getitem__)
    never = _next_uses(paths, [1])[0][0]
    assert _next_uses(paths, [0, 1, 0]) == [[1, 1], [2, never], [never, never]]
    assert _next_uses(paths, [0, 0, 1]) == [[1, never], [2, 2], [never, never]]


def test_a_block_belongs_to_the_run_it_ends_in() -> None:
    tree = _Tree(10)
    assert tree.spans((("a", 25), ("b", 4), ("c", 11))) == [(1, 0, 2), (3, 2, 4)]
    assert tree.spans((("a", 25), ("b", 0), ("d", 5))) == [(1, 0, 2), (4, 2, 3)]
    assert tree.spans((("a", 9),)) == []
    assert tree.spans((("a", 10),)) == [(1, 0, 1)]


# -- visits ------------------------------------------------------------------------------------------------


def two_visits() -> RunRecord:
    """The second of three requests went on to another instance."""
    found = record(table([0, 0, 0]), [instance([1, 2, 3]), instance([1, 2, 3])], [(0, [0])] * 3)
    visits = found.visits
    columns = {
        name: np.append(getattr(visits, name), getattr(visits, name)[1])
        for name in (
            *("instance", "role", "outcome", "enqueue_ns", "scheduled_ns", "first_token_ns"),
            *("last_token_ns", "finish_ns", "emitted_tokens", "cached_tokens", "preemptions"),
        )
    }
    columns["outcome"][1] = Onward.HANDED_OVER
    columns["emitted_tokens"] = np.array([1, 2, 3, 40])
    columns["cached_tokens"] = np.array([0, -1, -1, 7])
    columns["scheduled_ns"] = np.array([5, 6, -1, 9])
    columns["instance"][3] = 1
    emission: Any = SimpleNamespace()
    return SimpleNamespace(  # type: ignore[return-value]
        visits=Visits(requests=3, request=np.array([0, 1, 2, 1]), emission=emission, **columns)
    )


def test_columns_of_requests_follow_from_those_of_their_visits() -> None:
    visits = two_visits().visits
    assert not visits.single
    assert visits.first(visits.emitted_tokens).tolist() == [1, 2, 3]
    assert visits.last(visits.emitted_tokens).tolist() == [1, 40, 3]
    assert visits.total(visits.emitted_tokens).tolist() == [1, 42, 3]
    assert visits.first_known(visits.scheduled_ns).tolist() == [5, 6, -1]
    assert visits.last_known(visits.scheduled_ns).tolist() == [5, 9, -1]
    assert visits.first_known(visits.cached_tokens).tolist() == [0, 7, -1]
    assert visits.last_known(visits.cached_tokens).tolist() == [0, 7, -1]
    order, counts = visits.of(np.array([2, 1, 0]))
    assert (order.tolist(), counts.tolist()) == ([2, 1, 3, 0], [1, 2, 1])
