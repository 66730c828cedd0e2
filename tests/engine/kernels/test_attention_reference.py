from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from attention_cases import make_batch, naive
from hypothesis import given
from hypothesis import strategies as st

from engine.kernels.attention import paged_attention

LENGTHS = {
    "decodes of many lengths": [(1, 1), (1, 15), (1, 16), (1, 17), (1, 200), (1, 3)],
    "whole prompts": [(7, 7), (40, 40), (40, 40)],
    "a chunk over a cached prefix": [(5, 37), (32, 64)],
    "decodes, chunks and prompts together": [(1, 30), (1, 9), (20, 20), (3, 50), (20, 35)],
    "one new token after the decodes": [(1, 12), (4, 4), (1, 12)],
    "padded rows": [(1, 0), (1, 5), (1, 0)],
    "only padded rows": [(1, 0), (1, 0)],
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("mask_block", [1, 32])
def test_matches_the_definition(lengths: list[tuple[int, int]], mask_block: int) -> None:
    batch = make_batch(lengths, mask_block=mask_block)
    torch.testing.assert_close(batch.attend().double(), naive(batch), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("window", [0, 1, 16, 30])
@pytest.mark.parametrize("sinks", [False, True])
def test_windows_and_sinks_match_the_definition(
    lengths: list[tuple[int, int]], window: int, sinks: bool
) -> None:
    batch = make_batch(lengths, window=window, sinks=sinks)
    torch.testing.assert_close(batch.attend().double(), naive(batch), atol=2e-6, rtol=1e-5)


def test_layers_with_and_without_a_window_share_metadata() -> None:
    batch = make_batch([(1, 60), (6, 48)])
    near = replace(batch, window=5)
    assert not torch.equal(batch.attend(), near.attend())
    torch.testing.assert_close(near.attend().double(), naive(near), atol=2e-6, rtol=1e-5)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=5),
    decodes=st.lists(st.integers(0, 90), max_size=5),
    kv_heads=st.integers(1, 2),
    group=st.sampled_from([1, 3, 4, 8]),
    head_dim=st.sampled_from([8, 24]),
    page_size=st.sampled_from([4, 16, 20]),
    mask_block=st.sampled_from([1, 4, 32]),
)
def test_matches_the_definition_for_any_batch(
    lengths: list[tuple[int, int]],
    decodes: list[int],
    kv_heads: int,
    group: int,
    head_dim: int,
    page_size: int,
    mask_block: int,
) -> None:
    batch = make_batch(
        [*((1, total) for total in decodes), *((new, new + cached) for new, cached in lengths)],
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=head_dim,
        page_size=page_size,
        mask_block=mask_block,
        num_decodes=len(decodes),
    )
    torch.testing.assert_close(batch.attend().double(), naive(batch), atol=2e-6, rtol=1e-5)


def test_a_whole_prompt_is_torchs_causal_attention() -> None:
    batch = make_batch([(48, 48)], page_size=48, heads=4, kv_heads=4)
    page = int(batch.meta.block_tables[0, 0])
    queries = batch.q.transpose(0, 1)
    keys, values = batch.k_cache[page], batch.v_cache[page]
    expected = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=batch.scale)
    torch.testing.assert_close(batch.attend(), expected.transpose(0, 1))


def test_a_block_of_queries_attends_to_all_of_its_own_block() -> None:
    """Changing the last key of a block changes the first query of that block, and no query before it."""
    before = make_batch([(64, 64)], mask_block=32)
    changed = make_batch([(64, 64)], mask_block=32)
    page = int(changed.meta.block_tables[0, 3])
    changed.v_cache[page, :, 15] += 1.0
    difference = (before.attend() - changed.attend()).abs().amax((1, 2))
    assert (difference[:32] == 0).all()
    assert (difference[32:] > 0).all()


def test_the_same_metadata_serves_every_layer() -> None:
    batch = make_batch([(1, 20), (6, 18)])
    other = make_batch([(1, 20), (6, 18)], seed=1)
    first = batch.attend()
    second = paged_attention(other.q, batch.k_cache, batch.v_cache, batch.meta, batch.scale)
    assert not torch.equal(first, second)
    assert torch.equal(first, batch.attend())


def test_an_empty_batch_gives_no_rows() -> None:
    assert make_batch([]).attend().shape == (0, 4, 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 3, 32)}, "do not fit a cache"),
        ({"q": torch.zeros(2, 4, 64)[:, :, ::2]}, "heads of a query token must be contiguous"),
        ({"q": torch.zeros(2, 8, 32)[:, ::2]}, "heads of a query token must be contiguous"),
        (
            dict.fromkeys(("k_cache", "v_cache"), torch.zeros(4, 16, 2, 32).transpose(1, 2)),
            "KV cache must be",
        ),
        ({"v_cache": torch.zeros(9, 2, 16, 32)}, "differ"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change: dict[str, torch.Tensor], message: str) -> None:
    batch = make_batch([(1, 5), (1, 5)])
    tensors = {"q": batch.q, "k_cache": batch.k_cache, "v_cache": batch.v_cache, **change}
    with pytest.raises(ValueError, match=message):
        paged_attention(**tensors, meta=batch.meta, scale=1.0)


def test_a_window_under_blocks_and_sinks_of_other_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="a window of 4 tokens under a mask of blocks of 32"):
        make_batch([(1, 5)], mask_block=32, window=4).attend()
    with pytest.raises(ValueError, match="sinks"):
        replace(make_batch([(1, 5)]), sinks=torch.zeros(3)).attend()


def test_more_decodes_than_sequences_are_refused() -> None:
    batch = make_batch([(1, 5)], num_decodes=2)
    with pytest.raises(ValueError, match="2 decodes in 1 sequences"):
        batch.attend()
