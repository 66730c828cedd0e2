from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_builders import instance, record, table

from blis_py.latency.base import FrontendDelays
from blis_py.metrics.itl import TokenGaps
from blis_py.metrics.record import RunRecord
from blis_py.metrics.visits import Onward, by_instance

MS = 1_000_000
seeds = st.integers(0, 2**32 - 1)


def random_visits(seed: int, requests: int) -> tuple[RunRecord, list[list[int]]]:
    """Up to three visits of each request, on three instances; and when each token came.

    Built as that many requests of one visit each, whose visits are then given to fewer requests.
    """
    rng = np.random.default_rng(seed)
    ends = [np.cumsum(rng.integers(1, 9, 120)) * MS for _ in range(3)]
    owner = np.concatenate((np.arange(requests), np.sort(rng.integers(0, requests, requests))))
    turn = [int((owner[:visit] == row).sum()) for visit, row in enumerate(owner)]
    shares: list[Any] = []
    for visit in range(len(owner)):
        index, least = int(rng.integers(3)), turn[visit] * 900 * MS
        ends[index] = np.unique(np.concatenate((ends[index], least + np.cumsum(rng.integers(1, 9, 20)) * MS)))
        shares.append((index, least))
    for visit, (index, least) in enumerate(shares):
        there = np.flatnonzero((ends[index] > least) & (ends[index] < least + 160 * MS))
        shares[visit] = (index, there[rng.random(len(there)) < 0.8].tolist())
    engines = [instance(e) for e in ends]
    run = record(table([0] * len(owner)), engines, shares, frontend=FrontendDelays())
    visits = run.visits
    visits.requests, visits.request = requests, owner
    last = {row: visit for visit, row in enumerate(owner.tolist())}
    goes_on = [visit != last[row] for visit, row in enumerate(owner.tolist())]
    visits.outcome[goes_on] = Onward.HANDED_OVER
    run.table = run.table.take(np.arange(requests))
    times: list[list[int]] = [[] for _ in range(requests)]
    for row, (index, steps) in zip(owner.tolist(), shares, strict=True):
        times[row] += ends[index][steps].tolist()
    return run, times


@pytest.mark.slow
@given(seeds, st.sampled_from([2, 20]))
def test_gaps_run_through_all_visits_of_a_request(seed: int, requests: int) -> None:
    run, times = random_visits(seed, requests)
    assert run.emitted_tokens.tolist() == [len(one) for one in times]
    assert run.first_token_ns.tolist() == [one[0] if one else -1 for one in times]
    assert run.last_token_ns.tolist() == [one[-1] if one else -1 for one in times]
    rows = np.flatnonzero(run.emitted_tokens > 0)
    wanted = [b - a for row in rows for a, b in pairwise(times[row])]
    assert TokenGaps(run).of_each(rows)[0].tolist() == wanted
    assert TokenGaps(run).times(rows)[0].tolist() == [time for row in rows for time in times[row]]
    found = TokenGaps(run).distribution(rows)
    assert np.repeat(found.values, found.weights).tolist() == sorted(wanted)


@given(seeds)
def test_what_is_taken_keeps_its_visits(seed: int) -> None:
    run, times = random_visits(seed, 9)
    rows = np.random.default_rng(seed).permutation(9)[:5]
    taken = run.take(rows)
    assert taken.emitted_tokens.tolist() == run.emitted_tokens[rows].tolist()
    emitting = np.flatnonzero(taken.emitted_tokens > 0)
    assert TokenGaps(taken).times(emitting)[0].tolist() == [t for row in rows[emitting] for t in times[row]]


@given(seeds)
def test_every_visit_is_of_one_instance(seed: int) -> None:
    run, _ = random_visits(seed, 9)
    alone = [run.on([index]) for index in range(3)]
    assert sum(len(one.table) for one in alone) == len(run.visits)
    assert sum(int(one.emitted_tokens.sum()) for one in alone) == run.emitted_tokens.sum()


@given(st.lists(st.integers(-1, 4), max_size=20))
def test_places_by_instance_are_in_order(instances: list[int]) -> None:
    found = dict(by_instance(np.array(instances, dtype=np.int32)))
    wanted = {
        index: [i for i, one in enumerate(instances) if one == index] for index in set(instances) - {-1}
    }
    assert {index: places.tolist() for index, places in found.items()} == wanted
