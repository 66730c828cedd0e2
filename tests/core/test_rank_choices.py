"""Which rank gets a request, by loads worked out by hand; the ranks of a group as one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.core import _rank_views
from blis_py.core.rank_choice import RANK_CHOICES, RankLoad
from blis_py.core.request import Request

REQUEST = Request("r", 0, 1)


def load(waiting: int, running: int, prompt_tokens: int = 0, kv_use: float = 0.0) -> RankLoad:
    found = RankLoad()
    found.waiting, found.running, found.prompt_tokens, found.kv_use = waiting, running, prompt_tokens, kv_use
    return found


@pytest.mark.parametrize(
    ("choice", "loads", "rank"),
    [
        ("least-queued", [(1, 0), (0, 3)], 1),
        ("least-queued", [(1, 0), (0, 4)], 0),  # the first of equals
        ("least-queued", [(1, 0), (0, 5)], 0),
        ("least-queued-in-turn", [(1, 0), (0, 3)], 1),
        ("least-queued-in-turn", [(0, 1), (0, 1)], 1),  # it is the sixth request: the second's turn
        ("least-queued-in-turn", [(1, 0), (0, 4), (0, 4)], 2),
        ("least-loaded", [(1, 0), (0, 1)], 1),
        ("least-loaded", [(1, 0), (0, 2)], 0),
        ("least-loaded", [(1, 0, 0, 0.5), (0, 2, 0, 0.9)], 0),  # up to half of the KV a queue is no burden
        ("least-loaded", [(1, 0, 0, 0.75), (0, 2)], 1),  # 1 + 6 * 0.25 = 2.5
        ("least-loaded", [(2, 0, 0, 1.0), (0, 9)], 0),  # 2 + 12 * 0.5 = 8
        ("total-requests", [(1, 1), (0, 1)], 1),
        ("total-requests", [(1, 0), (0, 1)], 0),
        ("total-tokens", [(1, 0, 50), (3, 3, 49)], 1),
        ("total-tokens", [(1, 1, 50), (0, 1, 50)], 1),
        # Ranks with the most requests have no room for an equal share, unless all have as many.
        ("balanced-tokens", [(1, 1, 10), (0, 1, 99)], 1),
        ("balanced-tokens", [(1, 1, 99), (0, 2, 10)], 1),
        ("balanced-tokens", [(1, 1, 99), (0, 2, 10), (1, 0, 500)], 2),
        ("balanced-tokens", [(2, 1, 10), (0, 2, 40), (1, 0, 30)], 2),
        ("balanced-tokens", [(0, 0, 0), (0, 0, 0)], 0),
        ("balanced-tokens", [(0, 1, 9), (1, 0, 9), (0, 1, 3)], 2),
        ("balanced-tokens", [(3, 0, 9), (2, 0, 9), (1, 0, 9)], 2),
    ],
)
def test_a_rank_is_chosen_by_its_load(choice: str, loads: list[tuple[Any, ...]], rank: int) -> None:
    assert RANK_CHOICES[choice]([load(*each) for each in loads], REQUEST, 5) == rank


def test_ranks_take_turns() -> None:
    loads = [load(9, 0), load(0, 0), load(0, 0)]
    assert [RANK_CHOICES["round-robin"](loads, REQUEST, turn) for turn in range(5)] == [0, 1, 2, 0, 1]


def split_mix(number: int) -> int:
    """SplitMix64 as published."""
    mask = (1 << 64) - 1
    z = number * 0x9E3779B97F4A7C15 & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_a_bootstrap_room_is_a_random_number_of_the_request() -> None:
    loads = [load(0, 0)] * 7
    rows = range(40)
    found = [
        RANK_CHOICES["follow-bootstrap-room"](loads, SimpleNamespace(row=row), 0)  # type: ignore[arg-type]
        for row in rows
    ]
    assert found == [split_mix(row + 1) % 7 for row in rows]


class Pool:
    def __init__(self, total: int, in_use: int, least_free: int) -> None:
        self.total, self.in_use, self.least_free, self.in_use_ticks = total, in_use, least_free, 10 * in_use
        self.named = 0

    def name_reserved(self) -> None:
        self.named += 1


class KV:
    block_size, prefix_caching = 16, True

    def __init__(self, pool: Pool) -> None:
        self.pool, self.forgot = pool, 0

    def forget_unused(self) -> None:
        self.forgot += 1


def test_a_group_has_the_blocks_and_the_queues_of_all_ranks() -> None:
    ranks: Any = [
        SimpleNamespace(kv=KV(Pool(10, 4, 3)), waiting=[REQUEST]),
        SimpleNamespace(kv=KV(Pool(10, 6, 1)), waiting=[REQUEST, REQUEST]),
    ]
    booked: list[bool] = []
    pool = _rank_views.RankedPool(ranks, lambda: booked.append(True))
    assert (pool.total, pool.in_use, pool.in_use_ticks) == (20, 10, 100)
    assert pool.least_free == 11  # a rank alone has had 9 in use
    pool.most_used = 12
    assert pool.least_free == 8
    assert len(booked) == 4
    pool.name_reserved()
    kv = _rank_views.RankedKV(ranks, pool)
    kv.forget_unused()
    assert [(rank.kv.pool.named, rank.kv.forgot) for rank in ranks] == [(1, 1), (1, 1)]
    assert (kv.block_size, kv.prefix_caching) == (16, True)
    queues = _rank_views.RankQueues(ranks)
    assert len(queues) == 3
    assert list(queues) == [REQUEST] * 3
