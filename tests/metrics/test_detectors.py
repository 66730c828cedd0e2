"""Saturation detectors after the fact: what they say of simple runs, and of a recorded run of the peer."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from record_builders import instance, record, table

from blis_py.metrics.detectors import (
    BACKLOGGED,
    DETECTORS,
    OVERLOADED,
    STABLE,
    DetectorSettings,
    Event,
    Saturation,
    detect,
    events_of,
)
from blis_py.metrics.record import Outcome

MS, SECOND = 10**6, 10**9


def said(events: Iterable[Event], name: str, **settings: int) -> Saturation:
    return detect(events, [name], DetectorSettings(**settings), SECOND)


def served(e2e_ms: Iterable[int], every_ms: int = 1000) -> list[Event]:
    """One request after the other, each with its latency."""
    events = []
    for number, latency_ms in enumerate(e2e_ms):
        begin_ns = number * every_ms * MS
        events += [Event(begin_ns, True), Event(begin_ns + latency_ms * MS, False, latency_ms * MS)]
    return sorted(events, key=lambda event: (event.time_ns, not event.arrives))


def test_requests_that_are_answered_as_they_come_are_stable_to_all() -> None:
    found = detect(served([100] * 60), DETECTORS, DetectorSettings(window_ns=SECOND), SECOND)
    assert found.final == dict.fromkeys(DETECTORS, STABLE)


def test_answers_that_never_come_are_a_backlog_and_a_drift() -> None:
    events = [Event(second * SECOND, True) for second in range(40)]
    composite = said(events, "composite").findings["composite"][-1]
    assert (composite.level, composite.signals["rate_deficit"]) == (BACKLOGGED, 1.0)
    drift = said(events, "backlog-drift", window_ns=SECOND).findings["backlog-drift"][-1]
    assert (drift.level, drift.signals["running_slope"]) == (OVERLOADED, pytest.approx(1.0))


def test_latencies_that_rise_from_quarter_to_quarter_are_overload_and_others_no_trend() -> None:
    rising, last = served([100 + 20 * n for n in range(40)]), served([100] * 20 + [200] * 20)
    assert said(rising, "composite").final == {"composite": OVERLOADED}
    assert said(last, "composite").final == {"composite": STABLE}


@pytest.mark.parametrize(("last_ms", "level"), [(126, BACKLOGGED), (127, OVERLOADED)])
def test_a_trend_counts_above_the_noise_of_its_arrivals(last_ms: int, level: str) -> None:
    """Of 25 arrivals that is a fifth: from 100 ms in the mean of the first twelve to 120 ms."""
    found = said(served([99] * 6 + [101] * 6 + [113] * 6 + [last_ms] * 7), "composite")
    last = found.findings["composite"][-1]
    assert last.level == level
    assert last.signals["noise_floor"] == 0.2
    assert last.signals["latency_trend"] == pytest.approx((6 * 113 + 7 * last_ms) / 13 / 100 - 1)


def test_the_threshold_is_of_the_mean_so_far() -> None:
    found = said(served([400, 700]), "threshold", threshold_ns=500 * MS).findings["threshold"]
    assert [one.level for one in found] == [STABLE, STABLE, STABLE, OVERLOADED]
    assert found[1].score == pytest.approx(0.4)
    assert found[3].score == pytest.approx(0.75 + 0.1 / 4)
    assert found[3].signals == {"mean_e2e": pytest.approx(550), "threshold": pytest.approx(500)}


def test_of_levels_that_are_as_frequent_towards_the_end_the_worse_is_final() -> None:
    events = served([400, 700])
    settings = DetectorSettings(threshold_ns=500 * MS)
    for window_ns, final in ((2 * SECOND, STABLE), (SECOND, OVERLOADED)):  # 3 : 1, and 1 : 1
        assert detect(events, ["threshold"], settings, window_ns).final == {"threshold": final}


def test_a_cluster_that_turns_requests_away_has_not_answered_them() -> None:
    """Every second one is rejected: the others are fast, and none waits."""
    count = 40
    outcomes = [Outcome.COMPLETED, Outcome.REJECTED] * (count // 2)
    shares: list[Any] = [(0, [n]) if end is Outcome.COMPLETED else None for n, end in enumerate(outcomes)]
    steps = instance([(n + 1) * 10 * MS for n in range(count)])
    run = record(
        table([n * 10 * MS for n in range(count)], output_tokens=[1] * count), [steps], shares, outcomes
    )
    run.finish_ns[1::2] = run.table.arrival_ns[1::2]
    found = detect(events_of(run), DETECTORS, DetectorSettings(window_ns=100 * MS), SECOND)
    assert found.final == {"composite": BACKLOGGED, "threshold": STABLE, "backlog-drift": STABLE}
    assert found.findings["backlog-drift"][-1].signals["in_flight"] == 0


def test_every_finding_and_its_evidence_are_those_of_the_peer(shared_data: Path) -> None:
    """Of the requests that its run completed, which is all that its detectors see."""
    folder = shared_data / "peer_runs" / "08_gaie_legacy"
    report = json.loads(gzip.decompress((folder / "saturation_report.json.gz").read_bytes()))
    requests = json.loads(gzip.decompress((folder / "metrics.json.gz").read_bytes()))["requests"]
    ordered: list[tuple[int, bool, str, Event]] = []
    for one in requests:
        arrival_us, e2e_ns = round(one["arrived_at"] * 1e6), round(one["e2e_ms"] * 1e6)
        ends_us = arrival_us + e2e_ns // 1000
        ordered.append((arrival_us, False, one["requestID"], Event(arrival_us * 1000, True)))
        ordered.append((ends_us, True, one["requestID"], Event(ends_us * 1000, False, e2e_ns)))
    events = [event for *_, event in sorted(ordered, key=lambda item: item[:3])]
    settings = DetectorSettings(threshold_ns=600 * MS, window_ns=SECOND)
    ours = detect(events, DETECTORS, settings, SECOND).report()
    assert ours["final"] == report["final"]
    assert len(ours["trace"]) == len(report["trace"]) == 972
    for mine, theirs in zip(ours["trace"], report["trace"], strict=True):
        assert mine["detector"] == theirs["detector"]
        assert abs(mine["timestamp"] - theirs["timestamp"]) <= 1
        assert mine["result"]["level"] == theirs["result"]["level"], theirs
        numbers = [(mine["result"][key], theirs["result"][key]) for key in ("score", "confidence")]
        assert mine["result"]["signals"].keys() == theirs["result"]["signals"].keys()
        numbers += [
            (mine["result"]["signals"][key], value) for key, value in theirs["result"]["signals"].items()
        ]
        assert all(own == pytest.approx(other, rel=1e-9, abs=1e-9) for own, other in numbers), theirs
