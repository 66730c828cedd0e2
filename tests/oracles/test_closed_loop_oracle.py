"""Closed loops and sessions against naive ones: random runs with pauses and front-end delays."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from cluster_runs import LATENCIES, Row, table_of
from naive_closed_loop import NaiveLoop, sending_times, turn_time
from one_pool import simulate

from blis_py.cluster.ingress.closed_loop import ClosedLoops
from blis_py.core.config import SchedulerConfig
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.requests.loops import Loop, Loops
from blis_py.requests.table import RequestTable

US = 1_000
SCARCE = [
    SchedulerConfig(num_kv_blocks=60, max_model_len=400, max_num_seqs=6, async_scheduling=overlapped)
    for overlapped in (False, True)
]


def rows(rng: Random, count: int, lost: float = 0.0) -> list[Row]:
    """Of a share, half are longer than the model permits and half may time out."""
    found = []
    for number in range(count):
        prompt = 900 if rng.random() < lost / 2 else rng.randrange(1, 120)
        patience_us = rng.randrange(20, 900) if rng.random() < lost / 2 else -1
        output = rng.randrange(1, 12)
        found.append(
            Row(
                number * rng.randrange(1, 40),
                prompt,
                output,
                output,
                tenant=str(number),
                patience_us=patience_us,
            )
        )
    return found


def by_tenant(record: RunRecord, values: np.ndarray) -> dict[int, int]:
    """A record has its requests in the order of their sending."""
    return dict(zip(map(int, record.table.tenant.to_list()), values.tolist(), strict=True))


def run(table: RequestTable, loops: Loops, rng: Random) -> RunRecord:
    latency = LATENCIES[rng.choice(("constant", "linear"))]
    source, instances = ClosedLoops(table, loops), rng.choice((1, 3))
    return simulate(source, scheduler=rng.choice(SCARCE), latency=latency, num_instances=instances)


@pytest.mark.parametrize("seed", range(40))
def test_every_request_of_every_loop_is_sent_when_the_naive_loop_sends_it(seed: int) -> None:
    rng = Random(seed)
    table = table_of(rows(rng, 60, lost=0.3))
    ends = sorted(rng.sample(range(1, 60), 2))
    parts = []
    for begin, end in zip([0, *ends], [*ends, 60], strict=True):
        permits, pause = rng.choice((0, 1, 2, 5)), rng.choice((0, 0, 7, 200)) * US
        parts.append(NaiveLoop(begin, end, permits, pause, paced=permits == 0 or rng.random() < 0.6))
    loops = Loops([Loop(slice(p.begin, p.end), p.permits or None, p.pause, p.paced) for p in parts])
    record = run(table, loops, rng)
    sent, seen = by_tenant(record, record.table.arrival_ns), by_tenant(record, record.finish_ns)
    numbers = [int(name) for name in table.tenant.to_list()]
    due = dict(zip(numbers, table.arrival_ns.tolist(), strict=True))
    wanted = sending_times(parts, [due[n] for n in numbers], [seen[n] for n in numbers])
    assert [sent[n] for n in numbers] == wanted


@pytest.mark.parametrize("seed", range(20))
def test_every_turn_is_sent_its_think_time_after_an_answer_and_never_without_one(
    seed: int,
) -> None:
    rng = Random(seed)
    talks, turns = 12, 4
    number = np.arange(talks * turns)
    think_ns = np.array([rng.choice((0, 3, 250)) * US for _ in number])
    plain = table_of(rows(rng, talks * turns, lost=0.3))
    table = replace(plain, session=number % talks, round_index=number // talks, think_ns=think_ns)
    record = run(table, Loops([Loop(slice(0, talks))], later_turns=True), rng)
    place = {
        (int(session), int(turn)): row
        for row, (session, turn) in enumerate(zip(*columns(record), strict=True))
    }
    assert {Outcome.COMPLETED, Outcome.UNSERVABLE} <= set(record.outcome.tolist())
    for session in range(talks):
        for turn in range(1, turns):
            before = place.get((session, turn - 1))
            if before is None:
                assert (session, turn) not in place
                continue
            think = int(think_ns[turn * talks + session])
            answered = record.outcome[before] == Outcome.COMPLETED
            sent_ns = turn_time(int(record.finish_ns[before]), bool(answered), think)
            row = place.get((session, turn))
            assert sent_ns == (None if row is None else record.table.arrival_ns[row])


def columns(record: RunRecord) -> tuple[np.ndarray, np.ndarray]:
    assert record.table.session is not None
    assert record.table.round_index is not None
    return record.table.session, record.table.round_index


@pytest.mark.parametrize("seed", [*range(6), 70])
def test_jumping_over_steps_changes_nothing_where_requests_are_lost(seed: int) -> None:
    """Seed 70: a request came to an instance at a step boundary, after a chain of refusals at that time."""
    ends = []
    for single_step in (False, True):
        rng = Random(seed)
        table = table_of(rows(rng, 60, lost=0.5))
        permits, pause_ns, paced = rng.choice((1, 2, 5, 9)), rng.choice((0, 7, 200)) * US, rng.random() < 0.5
        source = ClosedLoops(table, Loops([Loop(slice(0, 60), permits, pause_ns, paced)]))
        latency = LATENCIES[rng.choice(("constant", "linear"))]
        record = simulate(
            source,
            scheduler=rng.choice(SCARCE),
            latency=latency,
            num_instances=rng.choice((1, 3)),
            single_step=single_step,
        )
        columns = (record.table.arrival_ns, record.finish_ns, record.outcome)
        ends.append([by_tenant(record, column) for column in columns])
    assert ends[0] == ends[1]
