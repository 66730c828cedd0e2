"""The bounds of a hit rate, against trying everything on small workloads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_builders import instance, record
from record_builders import table as arrivals

import blis_py as blis
from blis_py.core.kv import KeySpace
from blis_py.errors import InputError
from blis_py.metrics import summarise
from blis_py.metrics.record import RunRecord
from blis_py.metrics.reuse import clairvoyant, unlimited
from blis_py.metrics.summary import _prefix_hit_ceiling
from blis_py.workload import Content, RequestTable


def table(*prompts: tuple[int, Content]) -> RequestTable:
    """Requests in this order, each with its prompt's length and its content."""
    contents = [content for _, content in prompts]
    rows = np.arange(len(prompts))
    return RequestTable.build(
        rows,
        np.array([tokens for tokens, _ in prompts], dtype=np.int64),
        np.ones(len(prompts), dtype=np.int64),
        content=np.where([bool(content) for content in contents], rows, -1),
        contents=contents,
    )


SEGMENT = st.sampled_from(["a", "b", 7])
RUNS = st.lists(st.tuples(SEGMENT, st.integers(1, 5)), max_size=3).map(tuple)
SHORT_RUNS = st.lists(st.tuples(SEGMENT, st.integers(1, 3)), max_size=2).map(tuple)


@st.composite
def tables(draw: st.DrawFn, most: int = 5, runs: st.SearchStrategy[Content] = RUNS) -> RequestTable:
    """Prompts that end before, with or after what they share, some of it cut short of a block."""

    def prompt() -> tuple[int, Content]:
        content = draw(runs)
        return draw(st.integers(1, 1 + sum(tokens for _, tokens in content))), content

    return table(*(prompt() for _ in range(draw(st.integers(1, most)))))


def keys_of(workload: RequestTable, block_size: int) -> list[tuple[list[int], int]]:
    """Of each request the keys of its blocks, and how many of them it may find."""
    space = KeySpace(block_size)
    rows = zip(workload.prompt_tokens.tolist(), workload.content.tolist(), strict=True)
    return [
        (space.keys(workload.contents[content] if content >= 0 else ()), (tokens - 1) // block_size)
        for tokens, content in rows
    ]


def found_in_order(requests: list[tuple[list[int], int]]) -> int:
    seen: set[int] = set()
    hits = 0
    for keys, limit in requests:
        for key in keys[:limit]:
            if key not in seen:
                break
            hits += 1
        seen.update(keys)
    return hits


@given(tables(), st.integers(1, 3))
def test_no_order_of_the_requests_finds_more_than_the_unlimited_cache_and_one_finds_as_much(
    workload: RequestTable, block_size: int
) -> None:
    requests = keys_of(workload, block_size)
    best = max(found_in_order(list(order)) for order in permutations(requests))
    assert unlimited(workload, block_size).hit_tokens == best * block_size


def most_by_trying(requests: list[tuple[list[int], int]], capacity: int) -> int:
    """The most blocks found by whatever is kept after each request, requests in order."""

    @cache
    def best(at: int, kept: frozenset[int]) -> int:
        if at == len(requests):
            return 0
        keys, limit = requests[at]
        hits = 0
        while hits < min(limit, len(keys)) and keys[hits] in kept:
            hits += 1
        at_hand = sorted(kept | set(keys))
        size = min(capacity, len(at_hand))
        return hits + max(best(at + 1, frozenset(choice)) for choice in combinations(at_hand, size))

    return best(0, frozenset())


@given(tables(runs=SHORT_RUNS), st.integers(1, 2), st.integers(0, 3))
def test_nothing_that_could_be_kept_finds_more_than_the_clairvoyant_cache(
    workload: RequestTable, block_size: int, capacity: int
) -> None:
    expected = most_by_trying(keys_of(workload, block_size), capacity)
    assert clairvoyant(workload, block_size, capacity).hit_tokens == expected * block_size


@given(tables(most=8), st.integers(1, 3))
def test_more_blocks_never_find_less_and_never_more_than_the_unlimited_cache(
    workload: RequestTable, block_size: int
) -> None:
    hits = [clairvoyant(workload, block_size, capacity).hit_tokens for capacity in (0, 2, 5, 1000)]
    assert hits == sorted(hits)
    assert hits[0] == 0
    assert hits[-1] <= unlimited(workload, block_size).hit_tokens
    assert hits[-1] == found_in_order(keys_of(workload, block_size)) * block_size


def test_one_token_of_a_prompt_is_always_computed() -> None:
    shared: Content = (("system", 32),)
    assert unlimited(table((32, shared), (32, shared)), 16).hit_tokens == 16
    assert unlimited(table((33, shared), (33, shared)), 16).hit_tokens == 32


def test_the_answer_of_a_turn_is_found_by_the_next_turn() -> None:
    first, second = (100, (("talk", 160),)), (200, (("talk", 260),))
    assert unlimited(table(first, second), 16).hit_tokens == 160
    assert clairvoyant(table(first, second), 16, 10).hit_tokens == 160
    assert clairvoyant(table(first, second), 16, 9).hit_tokens == 144
    assert clairvoyant(table(second, first), 16, 100).hit_tokens == 96


def test_the_clairvoyant_cache_keeps_what_is_needed_first() -> None:
    a, b = (17, (("a", 16),)), (17, (("b", 16),))
    assert clairvoyant(table(a, b, a, b), 16, 1).hit_tokens == 16
    assert clairvoyant(table(a, b, a, b), 16, 2).hit_tokens == 32


def test_without_shared_content_nothing_is_found() -> None:
    alone = table((100, ()), (100, ()))
    assert unlimited(alone, 16).hit_rate == 0.0
    assert clairvoyant(alone, 16, 5).hit_rate == 0.0
    assert unlimited(alone, 16).queried_tokens == 200


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(InputError, match="num_blocks"):
        clairvoyant(table((1, ())), 16, -1)


def talk_and_stranger(**settings: object) -> RunRecord:
    """A record of three served requests, of which the second repeats the first with its answer."""
    talk: Content = (("talk", 64),)
    requests = replace(
        arrivals([0, 10, 20], prompt_tokens=[33, 65, 100]), content=np.array([0, 0, -1]), contents=[talk]
    )
    run = record(requests, [instance([100, 200])], [(0, [0]), (0, [1]), (0, [1])])
    run.config = {"scheduler": {"block_size": 16, **settings}}
    return run


def test_the_summary_states_the_ceiling_beside_the_hit_rate() -> None:
    cluster = summarise(talk_and_stranger())["cluster"]
    assert cluster["prefix_hit_ceiling"] == pytest.approx(64 / 198)
    keys = list(cluster)
    assert keys.index("prefix_hit_ceiling") > keys.index("prefix_hit_rate")


@pytest.mark.parametrize("settings", [{"enable_prefix_caching": False}, {"prefix_cache": "none"}])
def test_without_a_prefix_cache_there_is_no_ceiling(settings: dict[str, object]) -> None:
    assert summarise(talk_and_stranger(**settings))["cluster"]["prefix_hit_ceiling"] is None


def test_requests_that_were_never_served_are_no_part_of_the_ceiling() -> None:
    run = talk_and_stranger()
    run.scheduled_ns[0] = -1
    run.scheduled_ns[1] = -1
    assert _prefix_hit_ceiling(run) is None
    run.scheduled_ns[1] = 10
    assert _prefix_hit_ceiling(run) == 0.0


WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"


@pytest.mark.parametrize("prefix_cache", ["hash", "radix"])
@pytest.mark.parametrize("name", ["multi-turn-chat", "rag-nested", "hot-prefix"])
def test_a_cache_with_room_for_all_finds_the_ceiling_at_a_low_rate(name: str, prefix_cache: str) -> None:
    cluster = blis.run(
        model="llama-3.1-8b",
        workload=str(WORKLOADS / f"{name}.yaml"),
        num_requests=120,
        rate=0.2,
        num_kv_blocks=100_000,
        prefix_cache=prefix_cache,
    ).summary["cluster"]
    assert cluster["prefix_hit_rate"] == cluster["prefix_hit_ceiling"]
    assert cluster["prefix_hit_rate"] > 0.4


@pytest.mark.parametrize("scheduler", ["fcfs", "lpm"])
def test_under_pressure_no_run_finds_more_than_the_ceiling(scheduler: str) -> None:
    cluster = blis.run(
        model="llama-3.1-8b",
        workload=str(WORKLOADS / "hot-prefix.yaml"),
        num_requests=300,
        num_kv_blocks=3000,
        prefix_cache="radix",
        scheduler=scheduler,
    ).summary["cluster"]
    assert 0 < cluster["prefix_hit_rate"] < cluster["prefix_hit_ceiling"]
