from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_builders import instance, record, table

from blis_py.latency.base import FrontendDelays
from blis_py.metrics.emission import EmittedTokens
from blis_py.metrics.invariants import InternalError, check
from blis_py.metrics.itl import TokenGaps
from blis_py.metrics.record import RunRecord

MS = 1_000_000
seeds = st.integers(0, 2**32 - 1)


def ints(*rows: object) -> np.ndarray:
    return np.array(rows, dtype=np.int64)


def test_one_token_a_step_unless_said_otherwise() -> None:
    """The first visit emits with steps 2, 3 and 6, three tokens with step 6; the second never does."""
    emission = EmittedTokens(ints(2, -1), ints(6, -1), ints((0, 3, 6)), ints((0, 6, 3)))
    assert emission.steps().tolist() == [3, 0]
    assert emission.tokens().tolist() == [5, 0]
    assert emission.sizes(np.array([0, 1])).tolist() == [1, 1, 3]
    assert emission.first_tokens().tolist() == [1, 0]


def test_blocks_are_whole_but_for_those_that_are_said_not_to_be() -> None:
    emission = EmittedTokens(
        ints(0, 4), ints(2, 4), others=ints((0, 0, 20), (0, 2, 7)), tokens_per_step=32, as_blocks=True
    )
    assert emission.tokens().tolist() == [20 + 32 + 7, 32]
    assert emission.first_tokens().tolist() == [20, 32]
    assert emission.sizes(np.array([1, 0])).tolist() == [32, 20, 32, 7]


def speculating() -> RunRecord:
    """Steps end at 10, 20, 35 and 45 ms; the request gets 2, 1, none and 3 tokens with them."""
    ends = np.array([10, 20, 35, 45]) * MS
    run = record(table([0]), [instance(ends)], [(0, [0, 1, 3])])
    return with_tokens(run, [(0, 0, 2), (0, 3, 3)])


def with_tokens(run: RunRecord, others: list[tuple[int, int, int]]) -> RunRecord:
    run.visits.emission = replace(run.visits.emission, others=np.array(others, dtype=np.int64).reshape(-1, 3))
    run.visits.emitted_tokens[:] = run.visits.emission.tokens()
    return run


def test_tokens_of_one_step_come_without_a_gap() -> None:
    run, rows = speculating(), np.array([0])
    check(run)
    assert run.emitted_tokens.tolist() == [6]
    gaps = [0, 10 * MS, 25 * MS, 0, 0]
    assert TokenGaps(run).of_each(rows)[0].tolist() == gaps
    found = TokenGaps(run).distribution(rows)
    assert np.repeat(found.values, found.weights).tolist() == sorted(gaps)
    assert [time // MS for time in TokenGaps(run).times(rows)[0]] == [10, 10, 20, 45, 45, 45]


def test_the_front_end_deals_with_the_tokens_of_one_step_in_turn() -> None:
    run = replace(speculating(), frontend=FrontendDelays(per_token_ns=5))
    gaps = TokenGaps(run).of_each(np.array([0]))[0]
    assert gaps.tolist() == [5, 10 * MS + 5, 25 * MS + 5, 5, 5]


@pytest.mark.parametrize("tokens", [0, -1])
def test_a_step_that_emits_nothing_is_a_break(tokens: int) -> None:
    run = with_tokens(speculating(), [(0, 1, tokens)])
    with pytest.raises(InternalError, match="impossible number"):
        check(run)


@pytest.mark.slow
@given(seeds, st.sampled_from([3, 40]))
def test_gaps_are_those_of_the_tokens_one_by_one(seed: int, requests: int) -> None:
    """Any breaks, any numbers; whether few gaps are listed or many are counted."""
    rng = np.random.default_rng(seed)
    ends = [np.cumsum(rng.integers(1, 30, 60)) * MS for _ in range(3)]
    shares, others, times = [], [], []
    for row in range(requests):
        steps = np.flatnonzero(rng.random(60) < rng.choice([0.2, 0.9])).tolist() or [0]
        index, tokens = int(rng.integers(3)), rng.integers(1, 4, len(steps)).tolist()
        shares.append((index, steps))
        others += [(row, step, n) for step, n in zip(steps, tokens, strict=True) if n > 1]
        times.append(
            [int(ends[index][step]) for step, n in zip(steps, tokens, strict=True) for _ in range(n)]
        )
    run = with_tokens(record(table([0] * requests), [instance(e) for e in ends], shares), others)
    wanted = [[b - a for a, b in pairwise(one)] for one in times]
    chosen = rng.permutation(requests)[: max(1, requests - 2)]
    gaps, counts = TokenGaps(run).of_each(chosen)
    assert gaps.tolist() == [gap for row in chosen for gap in wanted[row]]
    assert counts.tolist() == [len(wanted[row]) for row in chosen]
    found = TokenGaps(run).distribution(chosen)
    assert np.repeat(found.values, found.weights).tolist() == sorted(gaps.tolist())
    assert run.visits.emission.sizes(chosen).sum() == run.emitted_tokens[chosen].sum()


@pytest.mark.parametrize("visits", [[0, 1, 2], [2, 0], [1, 2, 0], [1], []])
def test_visits_taken_have_the_tokens_that_they_had(visits: list[int]) -> None:
    """Each by itself, the first one too: its breaks, and its steps with other numbers of tokens."""
    emission = EmittedTokens(
        ints(2, 5, 0), ints(6, 9, 3), ints((0, 3, 6), (1, 6, 8)), ints((0, 6, 3), (1, 5, 2), (2, 1, 4))
    )
    taken = emission.take(np.array(visits, dtype=np.int64))
    assert taken.steps().tolist() == [emission.steps()[visit] for visit in visits]
    assert taken.tokens().tolist() == [emission.tokens()[visit] for visit in visits]
    order = np.arange(len(visits))
    assert taken.sizes(order).tolist() == emission.sizes(np.array(visits, dtype=np.int64)).tolist()
