"""The Triton kernels in Triton's interpreter, in float32: masks, pages, splits and merges."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from attention_cases import GARBAGE_PAGE, make_batch, naive

from engine.kernels import backend
from engine.kernels.fp8 import FP8

TILE, PAGE = 128, 16
"""Tokens of the largest tile, and of a page."""

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs them on the device")


def check(lengths: list[tuple[int, int]], **shape: Any) -> None:
    batch = make_batch(lengths, **shape)
    with backend.force("triton"):
        out = batch.attend()
    torch.testing.assert_close(out.double(), naive(batch), atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("group", [1, 3, 4, 5, 7, 8])
def test_decode_packs_the_query_heads_of_a_kv_head(group: int) -> None:
    check([(1, 37), (1, 5)], heads=2 * group, kv_heads=2)


@pytest.mark.parametrize("page_size", [16, 20, 64, 256])
def test_decode_reads_pages_of_any_size(page_size: int) -> None:
    check([(1, 300), (1, 64), (1, 1)], page_size=page_size, head_dim=128)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_decode_takes_head_dimensions_that_are_no_power_of_two(head_dim: int) -> None:
    check([(1, 70), (1, 3)], head_dim=head_dim, heads=2, kv_heads=1)


def test_decode_splits_a_long_sequence_among_all_programs_beside_short_ones() -> None:
    check([(1, 9), (1, 1500), (1, 0), (1, 130), (1, 257)], head_dim=128)


def test_decode_merges_more_parts_than_fit_into_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.kernels.triton import decode_attention

    monkeypatch.setattr(
        decode_attention, "PROGRAMS_PER_SM", 13
    )  # programs, of which a merge takes 16 at once
    check([(1, 40 * 128), (1, 9)], heads=5, kv_heads=1, head_dim=8)


def test_decode_gives_padded_rows_zeros() -> None:
    check([(1, 0), (1, 40), (1, 0)])
    check([(1, 0), (1, 0)])


def test_decode_takes_more_sequences_than_one_block_of_lengths() -> None:
    check([(1, index % 3 * 2) for index in range(66)], heads=1, kv_heads=1, head_dim=8)


@pytest.mark.parametrize("seed", range(6))
def test_decode_shares_work_whatever_the_lengths(seed: int) -> None:
    rng = Random(seed)
    lengths = [rng.choice([0, 1, 63, 64, 65, 128, rng.randint(1, 700)]) for _ in range(rng.randint(1, 12))]
    group, kv_heads = rng.choice([1, 2, 7]), rng.choice([1, 2, 3])
    shape = {"heads": group * kv_heads, "kv_heads": kv_heads, "head_dim": rng.choice([32, 64, 128])}
    check([(1, length) for length in lengths], **shape)


def test_all_layers_of_a_step_share_one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.kernels.triton import decode_attention

    batch = make_batch([(1, 9), (1, 1500), (1, 0), (1, 130)], heads=4, kv_heads=2, head_dim=64)
    plan = decode_attention.plan_decodes(batch.meta.seq_lens, 4, 2, 64)
    begin, stop, _, _, _, _, line, share = plan.T.tolist()
    assert line == [2 * (1 + 12 + 2)] * len(plan)
    assert (begin[0], max(stop)) == (0, line[0])
    assert begin[1:] == stop[:-1], "shares lie side by side"
    assert max(s - b for b, s in zip(begin, stop, strict=True)) == share[0]
    planned = replace(batch, meta=replace(batch.meta, decode_plans={0: plan}))
    monkeypatch.setattr(decode_attention, "plan_decodes", None)
    with backend.force("triton"):
        torch.testing.assert_close(planned.attend().double(), naive(batch), atol=3e-6, rtol=1e-5)


def test_there_are_as_many_merges_as_programs_however_many_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.kernels.triton import decode_attention

    grids: list[tuple[int, ...]] = []

    class Grids:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            grids.append(grid)
            return lambda *args, **kwargs: None

    monkeypatch.setattr(decode_attention, "_merge", Grids())
    for sequences in (1, 20):
        batch = make_batch([(1, 5)] * sequences, heads=4, kv_heads=2, head_dim=16)
        with backend.force("triton"):
            batch.attend()
    assert grids == [(decode_attention.PROGRAMS_PER_SM * 3, 2)] * 2


@pytest.mark.parametrize("mask_block", [1, 32])
@pytest.mark.parametrize("group", [1, 4, 5, 7, 8])
def test_prefill_packs_query_heads_and_tokens(group: int, mask_block: int) -> None:
    check([(33, 33), (18, 70)], heads=2 * group, kv_heads=2, mask_block=mask_block)


@pytest.mark.parametrize("page_size", [16, 20, 64, 256])
def test_prefill_reads_pages_of_any_size(page_size: int) -> None:
    check([(130, 200), (5, 65)], page_size=page_size, heads=2, kv_heads=1)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 256])
def test_prefill_takes_head_dimensions_that_are_no_power_of_two(head_dim: int) -> None:
    check([(20, 70)], head_dim=head_dim, heads=2, kv_heads=1)


@pytest.mark.parametrize("mask_block", [1, 32])
def test_prefill_of_single_tokens(mask_block: int) -> None:
    check([(1, 17), (1, 1), (1, 90)], num_decodes=0, mask_block=mask_block)


@pytest.mark.parametrize("mask_block", [1, 32])
def test_decodes_chunks_and_prompts_in_one_batch(mask_block: int) -> None:
    check([(1, 30), (1, 9), (20, 20), (3, 50), (70, 90)], mask_block=mask_block)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("window", [1, 40, 128, 200, 1000])
def test_windows_and_sinks(window: int, sinks: bool) -> None:
    lengths = [(1, 500), (1, 9), (1, 0), (1, 128), (1, 129), (3, 350), (45, 160)]
    check(lengths, window=window, sinks=sinks, head_dim=64, heads=6, kv_heads=2)


@pytest.mark.parametrize("window", [1, 70, 128])
def test_pages_outside_the_window_are_not_looked_up(window: int) -> None:
    lengths = [(1, 300), (1, 129), (20, 330), (3, 260)]
    batch = make_batch(lengths, window=window, head_dim=32, heads=2, kv_heads=1)
    with backend.force("triton"):
        expected = batch.attend()
        for row, (new, total) in enumerate(lengths):
            begin = max(total - new - window + 1, 0)
            batch.meta.block_tables[row, : begin // TILE * TILE // PAGE] = GARBAGE_PAGE
        assert (batch.meta.block_tables[:, 0] == GARBAGE_PAGE).sum() >= 3
        torch.testing.assert_close(batch.attend(), expected)


def test_sinks_without_a_window() -> None:
    check([(1, 900), (1, 0), (1, 30), (40, 90)], sinks=True, head_dim=64, heads=4, kv_heads=2)


@pytest.mark.parametrize("splits", [2, 5])
@pytest.mark.parametrize("window", [0, 20, 90])
def test_splits_of_the_keys_under_a_window_and_with_sinks(splits: int, window: int) -> None:
    from engine.kernels.triton.prefill_attention import prefill_attention

    batch = make_batch([(7, 350), (5, 5), (2, 0)], heads=2, kv_heads=1, window=window, sinks=True)
    out = torch.full(batch.q.shape, torch.nan)
    caches = (batch.k_cache, batch.v_cache)
    prefill_attention(batch.q, *caches, batch.meta, batch.scale, out, splits, window, batch.sinks)
    torch.testing.assert_close(out.double(), naive(batch), atol=3e-6, rtol=1e-5)


def test_a_plan_under_a_window_has_the_tiles_of_the_window() -> None:
    from engine.kernels.triton.decode_attention import plan_decodes

    lengths = torch.tensor([1000, 9, 0, 128], dtype=torch.int32)
    assert plan_decodes(lengths, 4, 2, 64, window=120)[0, 6] == 2 * (2 + 1 + 0 + 1)
    assert plan_decodes(lengths, 4, 2, 64)[0, 6] == 2 * (8 + 1 + 0 + 1)


KINDS: list[dict[str, Any]] = [{}, {"mask_block": 32}, {"window": 40, "sinks": True}]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("kind", range(3))
def test_every_configuration_attends_alike(number: int, kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every configuration takes every kind of mask, and splits the keys of one kind."""
    from engine.kernels.triton import prefill_attention as prefill
    from engine.kernels.triton.autotune import FirstConfig

    configs = prefill.CONFIGS["wide"]
    assert [config.kwargs["AHEAD"] for config in configs] == [True, False, False]
    configured = FirstConfig(prefill.KERNELS["wide"].fn, configs[number])
    monkeypatch.setattr(prefill, "KERNELS", dict.fromkeys(prefill.KERNELS, configured))
    splits = 3 if number == kind else 1
    lengths = [(44, 150), (9, 9), (2, 0)] if splits > 1 else [(70, 70), (20, 150), (5, 0)]
    batch = make_batch(lengths, num_decodes=0, heads=3, kv_heads=1, **KINDS[kind])
    out = torch.full(batch.q.shape, torch.nan)
    caches = (batch.k_cache, batch.v_cache)
    prefill.prefill_attention(
        batch.q, *caches, batch.meta, batch.scale, out, splits, batch.window, batch.sinks
    )
    torch.testing.assert_close(out.double(), naive(batch), atol=3e-6, rtol=1e-5)


def test_prompt_tails_are_cut_inside_a_block() -> None:
    check([(45, 45), (32, 96), (32, 77), (64, 130)], mask_block=32)


def test_prefill_gives_padded_sequences_zeros() -> None:
    check([(4, 0), (6, 20), (32, 0)], num_decodes=0, mask_block=32)
    check([(4, 0), (6, 20), (32, 0)], num_decodes=0)


@pytest.mark.parametrize("mask_block", [1, 32])
@pytest.mark.parametrize("splits", [2, 5])
def test_prefill_merges_splits_of_the_keys(splits: int, mask_block: int) -> None:
    """More splits than tiles leaves some with nothing, and some rows see nothing in some splits."""
    from engine.kernels.triton.prefill_attention import prefill_attention

    lengths = [(1, 9), (9, 150), (5, 5), (2, 0)]
    batch = make_batch(lengths, heads=2, kv_heads=1, mask_block=mask_block)
    out = torch.full(batch.q.shape, torch.nan)
    prefill_attention(batch.q, batch.k_cache, batch.v_cache, batch.meta, batch.scale, out, splits)
    torch.testing.assert_close(out[1:].double(), naive(batch)[1:], atol=3e-6, rtol=1e-5)
    assert out[:1].isnan().all(), "rows of decodes are not the prefill kernel's to write"


@pytest.mark.parametrize("splits", [None, 3])
@pytest.mark.parametrize("decodes", [0, 2, 4])
def test_a_captured_batch_of_which_fewer_are_decodes_and_prompts(decodes: int, splits: int | None) -> None:
    """Places for four decodes and four prompts; the last prompt has the tokens of the padding."""
    from engine.kernels.triton.decode_attention import decode_attention
    from engine.kernels.triton.prefill_attention import prefill_attention

    lengths = [(1, 30 + i) for i in range(decodes)] + [(0, 0)] * (4 - decodes)
    batch = make_batch([*lengths, (20, 20), (3, 50), (0, 0), (9, 0)], num_decodes=4, heads=2, kv_heads=1)
    meta = replace(batch.meta, usual_prompts=2, max_query_len=len(batch.q), max_seq_len=4096)
    out = torch.full(batch.q.shape, torch.nan)
    decode_attention(batch.q, batch.k_cache, batch.v_cache, meta, batch.scale, out)
    prefill_attention(batch.q, batch.k_cache, batch.v_cache, meta, batch.scale, out, splits)
    torch.testing.assert_close(out.double(), naive(batch), atol=3e-6, rtol=1e-5)
    torch.testing.assert_close(batch.attend().double(), naive(batch), atol=3e-6, rtol=1e-5)


def test_a_grid_larger_than_the_batch_changes_nothing() -> None:
    """As in a CUDA graph: the launch is sized by maxima, the tensors say what there is."""
    batch = make_batch([(1, 30), (20, 40)])
    with backend.force("triton"):
        expected = batch.attend()
        roomy = replace(batch, meta=replace(batch.meta, max_query_len=64, max_seq_len=4096))
        torch.testing.assert_close(roomy.attend(), expected, atol=3e-6, rtol=1e-5)


def choice(queries: list[int], max_seq_len: int, **heads: int) -> Any:
    from engine.kernels.triton.prefill_attention import choose

    settings = {"num_heads": 16, "num_kv_heads": 4, "head_dim": 128, "multiprocessors": 132, **heads}
    batch = {"tokens": sum(queries), "num_seqs": len(queries), "max_query_len": max(queries)}
    return choose(**batch, max_seq_len=max_seq_len, **settings)


@pytest.mark.parametrize("blocks", [1, 2, 4, 8, 16, 32])
def test_diffusion_blocks_over_long_contexts_keep_nearly_every_multiprocessor_busy(blocks: int) -> None:
    """A block of 32 tokens and a group of 4 heads fill a tile of 128 rows."""
    programs = blocks * 4 * choice([32] * blocks, 16_384).splits
    most = blocks * 4 * 16  # so many parts of the keys there can be
    assert min(most, 128) <= programs <= max(132, blocks * 4)


@pytest.mark.parametrize(
    ("queries", "max_seq_len", "splits"),
    [([32], 16_384, 16), ([32, 32], 1100, 2), ([32], 500, 1), ([4096], 16_384, 1), ([33, 1], 16_384, 11)],
)
def test_few_tiles_over_long_contexts_are_split(queries: list[int], max_seq_len: int, splits: int) -> None:
    assert choice(queries, max_seq_len).splits == splits


@pytest.mark.parametrize(
    ("query", "head_dim", "shape"),
    [(4, 128, "small"), (5, 128, "narrow"), (16, 64, "narrow"), (17, 128, "wide"), (17, 256, "wide d256")],
)
def test_tiles_are_as_high_as_the_longest_sequence_needs(query: int, head_dim: int, shape: str) -> None:
    assert choice([1, query], 100, head_dim=head_dim).shape == shape


def test_the_interpreter_takes_the_first_configuration() -> None:
    from engine.kernels.triton.prefill_attention import CONFIGS, KERNELS

    assert all(KERNELS[shape].config is configs[0] for shape, configs in CONFIGS.items())


BF16, FP16 = torch.bfloat16, torch.float16


@pytest.mark.parametrize(
    ("shape", "change", "taken"),
    [
        ("narrow", {"group": 7, "split": True, "cache": FP8}, "narrow float8"),
        ("narrow", {"group": 7, "cache": FP8}, "narrow"),
        ("narrow", {"group": 8, "split": True, "cache": FP8}, "narrow"),
        ("narrow", {"group": 7, "split": True}, "narrow"),
        ("small", {"query": FP16, "split": True, "cache": FP8}, "small float8"),
        ("small", {"query": BF16, "split": True, "cache": FP8}, "small d256"),
        ("small", {"query": FP16, "cache": FP8}, "small d256"),
        ("small", {"query": FP16, "split": True, "cache": FP8, "head_dim": 64}, "small d256"),
        ("small", {"window": 4096}, "small d256"),
        ("small", {"window": 128, "head_dim": 64}, "small"),
        ("small", {"head_dim": 80}, "small d256"),
        ("small", {}, "small"),
        ("wide", {"group": 7, "window": 4096}, "wide"),
        ("wide d256", {"cache": FP8, "head_dim": 256}, "wide d256 float8"),
    ],
)
def test_tiles_that_would_spill_have_fewer_keys(shape: str, change: dict[str, Any], taken: str) -> None:
    """`test_aot` compiles the worst of them."""
    from engine.kernels.triton.prefill_attention import CONFIGS, with_few_keys

    query = change.get("query", BF16)
    found = with_few_keys(
        shape,
        group=change.get("group", 4),
        head_dim=change.get("head_dim", 128),
        window=change.get("window", 0),
        split=change.get("split", False),
        query_dtype=query,
        cache_dtype=change.get("cache", query),
    )
    assert found == taken
    before, after = CONFIGS[shape][0].kwargs, CONFIGS[found][0].kwargs
    assert before["BLOCK_M"] == after["BLOCK_M"], "splits and the grid follow from the rows"


@pytest.mark.parametrize(
    ("cache", "group", "split", "fitting"),
    [
        (BF16, 7, True, [True, True, True]),
        (FP8, 7, True, [False, True, False]),
        (FP8, 12, True, [False, True, False]),
        (FP8, 7, False, [False, True, True]),
        (FP8, 8, True, [False, True, True]),
    ],
)
def test_configurations_that_would_spill_are_not_timed(
    cache: torch.dtype, group: int, split: bool, fitting: list[bool]
) -> None:
    from engine.kernels.triton.prefill_attention import CONFIGS, fits

    launch = {"k_cache": torch.empty(0, dtype=cache), "GROUP": group, "SPLIT": split}
    assert [fits(config, launch) for config in CONFIGS["wide"]] == fitting
    for shape in ("wide d256", "wide d256 float8"):
        assert all(fits(config, launch) for config in CONFIGS[shape])


@pytest.mark.parametrize("shape", ["small float8", "narrow float8"])
def test_tiles_of_few_keys_attend_alike(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.kernels.triton import prefill_attention as prefill

    monkeypatch.setattr(prefill, "with_few_keys", lambda *_, **__: shape)
    batch = make_batch([(5, 40), (3, 70)], num_decodes=0, heads=3, kv_heads=1)
    out = torch.full(batch.q.shape, torch.nan)
    prefill.prefill_attention(batch.q, batch.k_cache, batch.v_cache, batch.meta, batch.scale, out, splits=2)
    torch.testing.assert_close(out.double(), naive(batch), atol=3e-6, rtol=1e-5)
