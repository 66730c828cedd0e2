"""Waits of urgent requests beside less urgent ones: by hand, and against counting every moment."""

from __future__ import annotations

import random

import numpy as np
from record_builders import instance, record, table

from blis_py.metrics.priority_waits import _waited_ns, priority_waits
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.metrics.summary import summarise

S = 10**9
NOT_REACHED = -1


def _record(rows: list[tuple[int, str, int, int, int]]) -> RunRecord:
    """Of (instance, SLO class, queued, admitted, gone) per request, in ns."""
    names = [name for _, name, *_ in rows]
    requests = table([queued for _, _, queued, *_ in rows], slo_class=names)
    built = record(
        requests,
        [instance([1]), instance([1])],
        [(one, []) for one, *_ in rows],
        [Outcome.RUNNING if gone < 0 else Outcome.TIMED_OUT for *_, gone in rows],
    )
    visits = built.visits
    for row, (_, _, queued, admitted, gone) in enumerate(rows):
        visits.enqueue_ns[row], visits.scheduled_ns[row], visits.finish_ns[row] = queued, admitted, gone
    return built


def test_an_urgent_request_that_waits_for_a_slot_is_counted() -> None:
    run = _record(
        [(0, "batch", 0, 0, 20 * S), (0, "batch", 0, 0, 25 * S), (0, "critical", 2 * S, 20 * S, 21 * S)]
    )
    assert priority_waits(run) == {"priority_waits": {"requests": 1, "max_ms": 18_000.0}}


def test_what_is_no_such_wait() -> None:
    alone = [(0, "critical", 0, 5 * S, 6 * S), (0, "critical", 0, 0, 5 * S)]
    elsewhere = [(0, "batch", 0, 0, 9 * S), (1, "critical", 0, 5 * S, 6 * S)]
    patient = [(0, "critical", 0, 0, 9 * S), (0, "batch", 0, 5 * S, 6 * S)]
    short = [(0, "batch", 0, 0, 9 * S), (0, "critical", 0, S - 1, 6 * S)]
    for rows in (alone, elsewhere, patient, short):
        assert priority_waits(_record(rows)) == {}
        assert "priority_waits" not in summarise(_record(rows))


def test_a_request_that_gives_up_in_the_queue_waited_too() -> None:
    rows = [(0, "sheddable", 0, 0, NOT_REACHED), (0, "standard", 1, NOT_REACHED, 3 * S)]
    run = _record(rows)
    run.end_ns = 9 * S
    assert priority_waits(run)["priority_waits"] == {"requests": 1, "max_ms": (3 * S - 1) / 1e6}


def test_random_runs_against_counting_every_moment() -> None:
    rng = random.Random(5)
    urgency = {"critical": 0, "standard": 1, "": 1, "batch": 5}
    for _ in range(200):
        rows = []
        for _ in range(rng.randint(1, 12)):
            queued = rng.randrange(20)
            admitted = rng.choice([NOT_REACHED, queued + rng.randrange(15)])
            gone = rng.choice([NOT_REACHED, max(queued, admitted) + rng.randrange(15)])
            rows.append((rng.randrange(2), rng.choice(list(urgency)), queued, admitted, gone))
        run = _record(rows)
        run.end_ns = end = 60
        expected = []
        for at, name, queued, admitted, gone in rows:
            until = admitted if admitted >= 0 else gone if gone >= 0 else end
            beside = 0
            for now in range(queued, until):
                beside += any(
                    one == at
                    and urgency[other] > urgency[name]
                    and start >= 0
                    and start <= now
                    and now < (stop if stop >= 0 else end)
                    for one, other, _, start, stop in rows
                )
            expected.append(beside)
        np.testing.assert_array_equal(_waited_ns(run), expected)
