from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_py.errors import InputError
from engine.graphs import default_buckets
from engine.profile.diffusion_plan import plan_rounds, sentinel_round
from engine.profile.families import halves, shares, spaced
from engine.profile.plan import plan, sentinel
from engine.profile.shapes import GRIDS, Shape, ShapeLimits, fits

SMALL = ShapeLimits(16, 256, 512, 400, 16)
FULL, QUICK = GRIDS["full"], GRIDS["quick"]


def of(source: str, limits: ShapeLimits, grid: str = "full") -> list[Shape]:
    return [shape for shape in plan(limits, GRIDS[grid]) if shape.source == source]


def test_graph_buckets_are_measured_and_one_above_some() -> None:
    limits = replace(SMALL, buckets=(1, 2, 4, 8, 16))
    assert {len(shape.decodes) for shape in of("decode", limits)} == {1, 2, 3, 4, 8, 16}


def test_of_many_graph_buckets_those_at_a_common_ratio_are_measured_and_the_largest() -> None:
    limits = ShapeLimits(512, 8192, 32768, 6000, 64, buckets=default_buckets(512))
    sizes = {len(shape.decodes) for shape in of("decode", limits)}
    assert {1, 2, 4, 8, 16, 512} <= sizes
    assert len(sizes) < 24
    assert sum(size - 1 in limits.buckets and size not in limits.buckets for size in sizes) >= 3
    between = sorted(sizes & set(limits.buckets))
    assert max(high / low for low, high in pairwise(between)) <= 2


def test_steps_are_as_large_as_servers_run_and_prompts_of_unequal_length() -> None:
    limits = ShapeLimits(512, 8192, 32768, 6000, 64, buckets=default_buckets(512))
    shapes = plan(limits, FULL)
    assert max(len(shape.decodes) for shape in shapes) == 512
    assert max(sum(new for new, _ in shape.prefills) for shape in shapes) == 8192
    assert max(max(shape.contexts) for shape in shapes) > 32_000
    uneven = [shape for shape in shapes if len({new for new, _ in shape.prefills}) > 2]
    assert {"prefill", "mixed"} <= {shape.source for shape in uneven}
    assert any(sum(new for new, _ in shape.prefills) > 8000 for shape in uneven)


def test_halves_are_unequal_whole_and_sum_to_the_total() -> None:
    for total, parts in ((1, 1), (5, 5), (6, 5), (8192, 16)):
        found = halves(total, parts)
        assert (sum(found), len(found)) == (total, parts)
        assert min(found) >= 1
        assert list(found) == sorted(found, reverse=True)


def test_without_graphs_batches_double_and_the_largest_is_among_them() -> None:
    sizes = {len(shape.decodes) for shape in of("decode", replace(SMALL, max_num_seqs=11))}
    assert sizes == {1, 2, 3, 4, 6, 8, 11}


def test_contexts_reach_from_short_to_what_the_model_allows() -> None:
    alone = [shape.decodes[0] for shape in of("decode", SMALL) if len(shape.decodes) == 1]
    assert min(alone) == 16
    assert max(alone) > 0.9 * SMALL.max_model_len


def test_pages_fall_due_in_turn_not_all_at_once() -> None:
    (shape,) = [s for s in of("decode", SMALL, "quick") if len(s.decodes) == 16 and max(s.decodes) < 40]
    assert len({context % SMALL.block_size for context in shape.decodes}) == 16


def test_skewed_mixes_have_equal_sums_and_sizes() -> None:
    shapes = of("skewed", SMALL)
    for batch in {len(shape.decodes) for shape in shapes}:
        mixes = [shape.decodes for shape in shapes if len(shape.decodes) == batch]
        assert len(mixes) == 3
        assert len({sum(mix) for mix in mixes}) == 1
        assert max(mixes[2]) > max(mixes[1]) > max(mixes[0])


def test_prefills_vary_tokens_prompts_and_what_comes_before() -> None:
    shapes = of("prefill", SMALL)
    assert {len(shape.prefills) for shape in shapes} == {1, 4, 16}
    assert {sum(new for new, _ in shape.prefills) for shape in shapes} >= {16, 256}
    pasts = {past for shape in shapes for _, past in shape.prefills}
    assert 0 in pasts
    assert max(pasts) > 200
    assert not any(past % SMALL.block_size for past in pasts)


def test_mixed_steps_have_both_and_are_a_sample_that_the_seed_decides() -> None:
    mixed = of("mixed", SMALL)
    assert len(mixed) == FULL.mixed
    assert all(shape.decodes and shape.prefills for shape in mixed)
    assert plan(SMALL, FULL, seed=1) != plan(SMALL, FULL, seed=0) == plan(SMALL, FULL, seed=0)


def test_mixed_steps_cover_their_range_evenly() -> None:
    tokens = sorted(sum(new for new, _ in shape.prefills) for shape in of("mixed", SMALL))
    quarter = len(tokens) // 4
    assert tokens[quarter] < 20 < 60 < tokens[-quarter] <= 256


def test_only_a_mixture_of_experts_has_shapes_with_few_experts_and_many() -> None:
    assert not of("experts", SMALL)
    shapes = of("experts", replace(SMALL, experts=64, top_k=4))
    assert {shape.experts for shape in shapes if len(shape.decodes) == 8} >= {4, 32}
    assert all(4 <= shape.experts <= 4 * sum(n for n, _ in shape.prefills) + 4 * len(shape.decodes)
               for shape in shapes)  # fmt: skip


def test_there_is_work_for_the_host_at_every_batch_size() -> None:
    shapes = of("host", SMALL)
    assert {len(shape.decodes) for shape in shapes if not shape.prefills} >= {1, 8, 16}
    assert {len(shape.prefills) for shape in shapes} >= {1, 4, 8}


@settings(max_examples=60)
@given(
    st.integers(1, 64),
    st.integers(16, 600),
    st.integers(64, 700),
    st.integers(8, 300),
    st.sampled_from([16, 32]),
    st.sampled_from([0, 48]),
)
def test_whatever_is_planned_fits(
    seqs: int, budget: int, length: int, blocks: int, page: int, chunk: int
) -> None:
    limits = ShapeLimits(seqs, budget, min(length, blocks * page), blocks, page, chunk)
    try:
        shapes = plan(limits, QUICK)
    except InputError:
        return
    for shape in shapes:
        assert len(shape.contexts) <= seqs
        assert len(shape.decodes) + sum(new for new, _ in shape.prefills) <= budget
        assert max(shape.contexts) + shape.steps < limits.max_model_len
        assert sum(-(-(c + shape.steps) // page) for c in shape.contexts) <= blocks
        assert not chunk or all(new <= chunk for new, _ in shape.prefills)
    assert sentinel(shapes).decodes in [shape.decodes for shape in shapes]


def test_no_room_at_all_is_one_clear_error() -> None:
    with pytest.raises(InputError, match=r"max_model_len.*at least 56"):
        plan(replace(SMALL, max_model_len=20), FULL)
    assert plan(replace(SMALL, max_model_len=56), FULL)
    with pytest.raises(InputError, match=r"max_model_len.*at least 64"):
        plan_rounds(replace(SMALL, block_size=32, max_model_len=40), 32, FULL)
    assert plan_rounds(replace(SMALL, block_size=32, max_model_len=64), 32, FULL)


def test_contexts_of_any_lengths_go_together() -> None:
    """Sequences are placed at their contexts, so none outgrows its own while another is filled."""
    assert fits(Shape("skewed", (3, 180)), ShapeLimits(8, 8, 200, 200, 16))


def test_numbers_are_spaced_by_a_common_ratio_from_end_to_end() -> None:
    assert spaced(1, 64, 4) == [1, 4, 16, 64]
    assert spaced(5, 5, 3) == [5]
    assert spaced(9, 5, 3) == []


@given(st.integers(1, 10_000), st.integers(1, 50))
def test_shares_are_equal_but_for_one_and_sum_to_the_whole(total: int, parts: int) -> None:
    found = shares(total, parts)
    assert sum(found) == total
    assert max(found) - min(found) <= 1


ROUNDS = ShapeLimits(8, 512, 512, 200, 32)


def test_rounds_vary_blocks_context_and_masked_share() -> None:
    shapes = plan_rounds(ROUNDS, 32, FULL)
    alone = [shape for shape in shapes if not shape.prefills]
    assert {len(shape.blocks) for shape in alone} >= {1, 2, 4, 8}
    assert {shape.masked for shape in alone} == {31, 16, 4, 2}
    assert {shape.blocks[0] for shape in alone} >= {0, 32}
    assert max(shape.blocks[0] for shape in alone) >= 400
    for shape in alone:
        if len(shape.blocks) > 1 and max(shape.blocks) > 64:
            assert len(set(shape.blocks)) > 1, (
                "contexts differ in service, and attention is padded to the longest"
            )


def test_prompts_are_measured_alone_and_beside_blocks() -> None:
    shapes = plan_rounds(ROUNDS, 32, FULL)
    assert any(shape.prefills and not shape.blocks for shape in shapes)
    assert any(shape.prefills and shape.blocks for shape in shapes)
    assert any(past for shape in shapes for _, past in shape.prefills)


def test_planned_rounds_fit_and_consist_of_whole_blocks() -> None:
    for shape in plan_rounds(ROUNDS, 32, FULL):
        new = sum(tokens for tokens, _ in shape.prefills)
        assert len(shape.blocks) * 32 + new <= 512
        assert len(shape.blocks) + len(shape.prefills) <= 8
        assert not any(count % 32 for count in (new, *shape.blocks))
    assert sentinel_round(plan_rounds(ROUNDS, 32, QUICK)).blocks
