"""The short runs of a profile fit into the engine, differ from each other and never change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.profile.served import concurrency, short_requests
from engine.profile.shapes import Limits


@given(
    seqs=st.integers(1, 256),
    blocks=st.integers(8, 4000),
    length=st.integers(128, 8192),
    number=st.integers(0, 40),
)
def test_all_that_are_under_way_fit_at_their_longest(
    seqs: int, blocks: int, length: int, number: int
) -> None:
    limits = Limits(seqs, 2048, length, blocks, 16)
    requests = short_requests(limits, number)
    at_most = concurrency(limits, number)
    assert 1 <= at_most <= seqs
    assert all(prompt >= 1 and answer >= 2 and prompt + answer <= length for prompt, answer in requests)
    assert requests == short_requests(limits, number)


def test_runs_differ_and_fill_the_engine_to_different_degrees() -> None:
    limits = Limits(64, 2048, 512, 4000, 16)
    assert short_requests(limits, 0) != short_requests(limits, 3)
    assert [concurrency(limits, number) for number in range(4)] == [64, 16, 38, 64]
