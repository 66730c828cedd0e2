"""The short runs of a profile fit into the engine, differ from each other and never change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.profile.served import concurrency, short_blocks, short_requests
from engine.profile.shapes import ShapeLimits


@given(
    seqs=st.integers(1, 256),
    blocks=st.integers(8, 4000),
    length=st.integers(128, 8192),
    number=st.integers(0, 40),
)
def test_all_that_are_under_way_fit_at_their_longest(
    seqs: int, blocks: int, length: int, number: int
) -> None:
    limits = ShapeLimits(seqs, 2048, length, blocks, 16)
    requests = short_requests(limits, number)
    at_most = concurrency(limits, number)
    assert 1 <= at_most <= seqs
    assert all(prompt >= 1 and answer >= 2 and prompt + answer <= length for prompt, answer in requests)
    assert requests == short_requests(limits, number)


@given(
    seqs=st.integers(1, 64),
    pages=st.integers(64, 4000),
    length=st.integers(64, 8192),
    block=st.sampled_from([16, 32]),
    number=st.integers(0, 40),
)
def test_answers_of_block_diffusion_fill_up_the_last_block_of_their_prompts(
    seqs: int, pages: int, length: int, block: int, number: int
) -> None:
    limits = ShapeLimits(seqs, 2048, length, pages, 32)
    requests = short_blocks(limits, block, number)
    most = pages // concurrency(limits, number) * 32
    for prompt, answer in requests:
        assert 1 <= answer <= 8 <= prompt
        assert (prompt + answer) % block == 0
        assert prompt + answer <= min(length, most)
    assert requests == short_blocks(limits, block, number)
    assert len({answer for _, answer in requests}) > 1


def test_runs_differ_and_fill_the_engine_to_different_degrees() -> None:
    limits = ShapeLimits(64, 2048, 512, 4000, 16)
    assert short_requests(limits, 0) != short_requests(limits, 3)
    assert [concurrency(limits, number) for number in range(4)] == [64, 16, 38, 64]
