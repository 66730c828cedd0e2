from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_builders import emission_times, instance, random_record, record, table

from blis_py.latency.base import FrontendDelays
from blis_py.metrics.distribution import Distribution
from blis_py.metrics.emission import EmittedTokens
from blis_py.metrics.itl import TokenGaps, _SharedVisits, _sorted
from blis_py.metrics.latencies import latencies
from blis_py.metrics.record import RunRecord

seeds = st.integers(0, 2**32 - 1)


def naive_gaps(run: RunRecord, rows: list[int]) -> list[int]:
    return [gap for row in rows for gap in np.diff(emission_times(run, row)).tolist()]


def expanded(distribution: Distribution) -> list[int]:
    return np.repeat(distribution.values, distribution.weights).tolist()


def some_rows(run: RunRecord, seed: int) -> list[int]:
    """A random subset of the requests that emitted anything."""
    with_tokens = np.flatnonzero(run.emitted_tokens > 0)
    return with_tokens[np.random.default_rng(seed).random(len(with_tokens)) < 0.7].tolist()


@pytest.mark.slow
@given(seeds, st.sampled_from([2, 12, 60]), st.booleans())
def test_pooled_gaps_are_those_of_the_tokens_one_by_one(seed: int, requests: int, coarse: bool) -> None:
    run = random_record(seed, requests=requests, instances=3)
    if coarse:  # whole milliseconds, as the steps of this record are
        run = replace(run, frontend=FrontendDelays(0, 0, 0))
    rows = some_rows(run, seed)
    found = TokenGaps(run).distribution(np.array(rows, dtype=np.intp))
    assert expanded(found) == sorted(naive_gaps(run, rows))


@pytest.mark.slow
@given(seeds)
def test_pooled_gaps_of_one_instance_need_only_that_instance(seed: int) -> None:
    run = random_record(seed, requests=40, instances=3)
    for index in range(3):
        rows = [row for row in some_rows(run, seed) if run.instance[row] == index]
        found = TokenGaps(run).distributions([np.array(rows, dtype=np.intp)], [index])[0]
        assert expanded(found) == sorted(naive_gaps(run, rows))


@pytest.mark.slow
@given(seeds)
def test_gaps_of_each_request_come_in_order(seed: int) -> None:
    run = random_record(seed, requests=20, instances=2)
    rows = some_rows(run, seed)
    gaps, counts = TokenGaps(run).of_each(np.array(rows, dtype=np.intp))
    assert gaps.tolist() == naive_gaps(run, rows)
    assert counts.tolist() == [len(emission_times(run, row)) - 1 for row in rows]


@pytest.mark.slow
@given(seeds)
def test_times_of_each_request_are_those_of_its_tokens(seed: int) -> None:
    run = random_record(seed, requests=20, instances=2)
    rows = some_rows(run, seed)
    times, counts = TokenGaps(run).times(np.array(rows, dtype=np.intp))
    lines = [emission_times(run, row) for row in rows]
    assert counts.tolist() == [len(one) for one in lines]
    assert times.tolist() == [time_ns for one in lines for time_ns in one]


@given(seeds)
@settings(max_examples=30)
def test_weighting_and_expanding_agree(seed: int) -> None:
    """Few tokens are expanded, many are weighted; both ways give the same distribution."""
    run = random_record(seed, requests=80, instances=2)
    rows = np.array(some_rows(run, seed), dtype=np.intp)
    gaps = TokenGaps(run)
    weighted = gaps.distribution(rows)
    assert weighted.count >= 10
    assert expanded(weighted) == expanded(Distribution.of(gaps.of_each(rows)[0]))


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 40), min_size=80, max_size=120),
    st.lists(st.integers(10**6, 10**7), max_size=9),
    st.integers(0, 1),
)
def test_counting_finds_what_sorting_finds(microseconds: list[int], pauses: list[int], ns: int) -> None:
    values = 1000 * np.array(microseconds + pauses, dtype=np.int64) + ns
    found, counts_of = _sorted(values)
    wanted, counts = np.unique(values, return_counts=True)
    ordered = counts_of(np.ones(len(values), dtype=np.int64))
    assert found.tolist() == (values[np.argsort(values)] if ns else wanted).tolist()
    assert [int(ordered[found == one].sum()) for one in wanted] == counts.tolist()


def test_a_preemption_shows_as_one_long_gap() -> None:
    """Steps end at 10, 20, 30, 50, 60 ms; the request misses those at 20 and 30."""
    ends = np.array([10, 20, 30, 50, 60]) * 1_000_000
    run = record(table([0]), [instance(ends)], [(0, [0, 3, 4])], frontend=FrontendDelays(per_token_ns=7))
    rows = np.array([0])
    assert expanded(TokenGaps(run).distribution(rows)) == [10_000_007, 40_000_007]
    assert latencies(run).itl_mean_ns[0] == 25_000_007


@pytest.mark.slow
@given(seeds)
def test_the_mean_gap_of_a_request_is_its_mean_itl(seed: int) -> None:
    run = random_record(seed, requests=20)
    column = latencies(run).itl_mean_ns
    for row in np.flatnonzero(~np.isnan(column)).tolist():
        assert column[row] == pytest.approx(np.mean(naive_gaps(run, [row])))


def test_a_run_without_steps_has_no_gaps() -> None:
    run = record(table([0, 5]), [instance([])], [None, None])
    rows = np.zeros(0, dtype=np.intp)
    assert TokenGaps(run).distribution(rows).count == 0
    assert TokenGaps(run).of_each(rows)[0].tolist() == []


@pytest.mark.parametrize("first", [0, 3, 7, 12])
@pytest.mark.parametrize("count", [1, 4, 20])
def test_the_gap_of_a_step_is_seen_by_the_visits_that_emitted_with_it_and_with_one_before(
    first: int, count: int
) -> None:
    """Three visits; the second one emits with steps 2, 3, and from 8 to 10."""
    emission = EmittedTokens(np.array([0, 2, 5]), np.array([9, 10, 5]), np.array([[1, 3, 8]]))
    shared = _SharedVisits(np.arange(3))
    shared.prepare(emission)
    seen = {*range(1, 10)}, {3, 9, 10}, set[int]()
    steps = range(first, first + count)
    assert shared.weights(first, count).tolist() == [sum(step in own for own in seen) for step in steps]
