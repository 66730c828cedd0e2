"""Which prefix the radix cache gives up first, seen from outside: by what a request still finds cached."""

from __future__ import annotations

import pytest
from cluster_runs import Row, linear, table_of
from one_pool import simulate

from blis_py.core.config import SchedulerConfig
from blis_py.core.eviction import EVICTION_POLICIES

Runs = tuple[tuple[str, int], ...]

URGENCY = {"A": "batch", "C": "critical"}
VISITS = "ABCDDDBAC"
"""Documents in the order of their requests. In the end the oldest is A, C the latest, and D the one
not used for longest; B has been used as seldom as A and C, and longer ago."""


def found(policy: str, blocks: int, visits: list[tuple[Runs, str]]) -> list[int]:
    """Cached tokens that each visit finds, one after the other. A visit's last prompt token is its own."""
    rows = [
        Row(1000 * i, sum(tokens for _, tokens in runs) + 1, 1, 1, slo_class=urgency, runs=runs)
        for i, (runs, urgency) in enumerate(visits)
    ]
    config = SchedulerConfig(
        num_kv_blocks=blocks,
        max_model_len=1000,
        block_size=4,
        prefix_cache="radix",
        radix_eviction_policy=policy,
    )
    latency = linear(10_000)
    return simulate(table_of(rows), scheduler=config, latency=latency).cached_tokens.tolist()


@pytest.mark.parametrize(
    ("policy", "victim"),
    [("lru", "D"), ("lfu", "B"), ("fifo", "A"), ("mru", "C"), ("priority", "A"), ("cold-subtree", "B")],
)
def test_each_policy_gives_up_the_document_it_is_named_for(policy: str, victim: str) -> None:
    """Four documents of 2 blocks fill 8 of 10; another one needs 3."""
    visits = [(((name, 8),), URGENCY.get(name, "standard")) for name in (*VISITS, "new")]
    for name in "ABCD":
        last = found(policy, 10, [*visits, (((name, 8),), "standard")])[-1]
        assert last == (4 if name == victim else 8), name


def test_every_policy_is_distinguished() -> None:
    assert set(EVICTION_POLICIES) == {"lru", "lfu", "fifo", "mru", "priority", "cold-subtree"}


LONG: Runs = (("common", 8), ("rest", 8))
OTHER: Runs = (("common", 8), ("end", 4))
OFTEN: Runs = (("often", 8),)


def test_the_common_part_of_two_documents_keeps_the_hits_it_had_before_they_parted() -> None:
    """The common part has been hit twice before and twice since, `often` 3 times, and the rest twice."""
    visits = [LONG, LONG, LONG, OTHER, OTHER, *[OFTEN] * 4, (("new", 20),)]  # 7 of 9 blocks, and 6 more
    for last, tokens in ((LONG[:1], 8), (OFTEN, 4)):
        assert found("lfu", 9, [(runs, "") for runs in (*visits, last)])[-1] == tokens


def test_the_rest_of_a_document_keeps_its_hits_when_the_common_part_is_cut_off() -> None:
    """The rest has been hit twice, `often` once."""
    visits = [LONG, LONG, LONG, OTHER, OFTEN, OFTEN, (("new", 16),)]  # 7 of 9 blocks, and 5 more
    for last, tokens in ((LONG, 16), (OFTEN, 0)):
        assert found("lfu", 9, [(runs, "") for runs in (*visits, last)])[-1] == tokens
