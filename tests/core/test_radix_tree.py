"""The radix tree by itself: matching, splitting, locking, evicting."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import pytest

from blis_py.core.eviction import EVICTION_POLICIES
from blis_py.core.radix import RadixTree
from blis_py.core.radix_node import Node


class Owner:
    """Puts sequences into a tree and remembers the blocks it gave each key sequence."""

    def __init__(self, strategy: str = "lru") -> None:
        self.tree = RadixTree(EVICTION_POLICIES[strategy])
        self.blocks = 0

    def add(self, keys: str | list[Hashable], priority: int = 0, extra_key: Hashable = None) -> Node:
        """Compute these blocks, and keep them locked."""
        keys = list(keys)
        match = self.tree.match(keys, len(keys), extra_key)
        node = self.tree.lock(match, priority)
        rest = keys[match.blocks :]
        if rest:
            fresh = list(range(self.blocks, self.blocks + len(rest)))
            self.blocks += len(rest)
            node, present = self.tree.insert(node, rest, fresh, priority)
            assert present == []
        self.tree.check()
        return node

    def cache(self, keys: str, priority: int = 0) -> None:
        """Compute these blocks, and release them."""
        self.tree.unlock(self.add(keys, priority))
        self.tree.check()

    def known(self, keys: str | list[Hashable], extra_key: Hashable = None) -> int:
        return self.tree.match(list(keys), len(keys), extra_key).blocks

    def evict(self, count: int) -> None:
        self.tree.evict(count)
        self.tree.check()

    def shape(self) -> list[str]:
        return sorted("".join(map(str, node.keys)) for node in self.tree.nodes())


def test_a_match_ends_where_the_keys_part() -> None:
    owner = Owner()
    owner.cache("abcd")
    assert [owner.known(keys) for keys in ("abcd", "abcde", "abxd", "a", "x", "")] == [4, 4, 2, 1, 0, 0]


def test_a_match_never_goes_beyond_its_limit() -> None:
    owner = Owner()
    owner.cache("abcd")
    assert owner.tree.match(list("abcd"), 3).blocks == 3


def test_matching_leaves_no_trace() -> None:
    owner = Owner()
    owner.cache("abcd")
    owner.cache("xy")
    owner.known("abxd")
    assert owner.shape() == ["abcd", "xy"]
    owner.evict(1)
    assert owner.known("abcd") == 3  # still the least recently used


def test_the_blocks_of_a_match_are_those_that_were_put_in() -> None:
    owner = Owner()
    owner.cache("abcd")  # blocks 0 to 3
    owner.cache("abxy")  # a, b and blocks 4, 5
    match = owner.tree.match(list("abxyz"), 5)
    assert owner.tree.blocks(match) == [0, 1, 4, 5]


def test_a_node_splits_where_a_user_leaves_it_and_both_parts_keep_their_users() -> None:
    owner = Owner()
    whole = owner.add("abcd")
    part = owner.add("abxy")
    assert owner.shape() == ["ab", "cd", "xy"]
    upper = whole.parent
    assert upper is not None
    assert (upper.locks, whole.locks, part.locks) == (2, 1, 1)
    owner.tree.unlock(whole)
    assert (upper.locks, owner.tree.evictable_size(), owner.tree.protected_size()) == (1, 2, 4)
    owner.tree.unlock(part)
    assert (upper.locks, owner.tree.evictable_size(), owner.tree.protected_size()) == (0, 6, 0)


def test_a_user_whose_node_was_split_goes_on_from_its_own_end() -> None:
    owner = Owner()
    node = owner.add("abcd")
    owner.cache("abxy")
    node, present = owner.tree.insert(node, ["e"], [99])
    assert present == []
    assert owner.known("abcde") == 5
    owner.tree.check()


def test_what_one_user_adds_in_pieces_stays_one_node() -> None:
    owner = Owner()
    node = owner.add("ab")
    node, _ = owner.tree.insert(node, ["c"], [10])
    owner.tree.insert(node, ["d"], [11])
    assert owner.shape() == ["abcd"]


def test_no_request_grows_a_node_that_another_ends_in() -> None:
    owner = Owner()
    node = owner.add("ab")
    other = owner.add("ab")
    assert node is other
    grown, _ = owner.tree.insert(node, ["c"], [10])
    assert owner.shape() == ["ab", "c"]
    assert (other.locks, grown.locks) == (2, 1)


def test_inserting_what_is_there_returns_it_and_adds_only_the_rest() -> None:
    owner = Owner()
    early = owner.tree.lock(owner.tree.match([], 0))
    owner.cache("abc")  # blocks 0 to 2, computed by another in the meantime
    node, present = owner.tree.insert(early, list("abx"), [10, 11, 12])
    assert present == [0, 1]
    assert owner.tree.blocks(owner.tree.match(list("abx"), 3)) == [0, 1, 12]
    assert owner.tree.evictable_size() == 1  # c
    owner.tree.unlock(node)
    assert owner.tree.evictable_size() == 4
    owner.tree.check()


def test_locked_blocks_are_never_evicted_and_evictable_ones_all_can_be() -> None:
    owner = Owner()
    owner.add("ab")
    owner.cache("abcd")
    owner.cache("x")
    assert owner.tree.evictable_size() == 3
    owner.evict(3)
    assert [owner.known(keys) for keys in ("abcd", "x")] == [2, 0]


def test_leaves_go_before_what_they_build_on_and_a_leaf_from_its_end() -> None:
    owner = Owner()
    owner.cache("abcd")
    owner.cache("abxy")
    lengths = []
    for _ in range(6):
        owner.evict(1)
        lengths.append((owner.known("abcd"), owner.known("abxy")))
    assert lengths == [(3, 4), (2, 4), (2, 3), (2, 2), (1, 1), (0, 0)]


def test_evicting_at_once_or_one_by_one_gives_up_the_same_blocks() -> None:
    for strategy in EVICTION_POLICIES:
        together, alone = Owner(strategy), Owner(strategy)
        for owner in (together, alone):
            for keys in ("abcd", "abxy", "pq", "pr", "abcz", "s"):
                owner.cache(keys)
        assert together.tree.evict(7) == [alone.tree.evict(1)[0] for _ in range(7)], strategy


def test_after_eviction_nothing_is_left_of_an_empty_tree() -> None:
    owner = Owner()
    for i in range(20):
        owner.tree.unlock(owner.add(f"a{i}b", extra_key=i))
    owner.evict(owner.tree.evictable_size())
    assert list(owner.tree.nodes()) == []
    assert owner.tree._roots == {}
    assert owner.tree.protected_size() == owner.tree.evictable_size() == 0


def test_namespaces_share_nothing() -> None:
    owner = Owner()
    owner.tree.unlock(owner.add("ab", extra_key="adapter 1"))
    assert owner.known("ab", "adapter 1") == 2
    assert owner.known("ab", "adapter 2") == owner.known("ab") == 0


@dataclass(frozen=True)
class Colliding:
    """Equal only to its like, with a hash like all others."""

    name: str

    def __hash__(self) -> int:
        return 1


def test_keys_whose_hashes_collide_are_kept_apart() -> None:
    owner = Owner()
    a, b, c = map(Colliding, "abc")
    owner.tree.unlock(owner.add([a, b]))
    owner.tree.unlock(owner.add([a, c]))
    owner.tree.unlock(owner.add([b]))
    assert [owner.known(list(keys)) for keys in ([a, b], [a, c], [b], [c], [a, a])] == [2, 2, 1, 0, 1]
    match = owner.tree.match([a, c], 2)
    assert owner.tree.blocks(match) == [0, 2]


@pytest.mark.parametrize(
    ("strategy", "first_lost"),
    [
        ("lru", "q"),  # p was used again
        ("mru", "p"),
        ("fifo", "p"),
        ("lfu", "q"),
        ("priority", "r"),  # only used by priority 5
        ("cold-subtree", "q"),
    ],
)
def test_each_strategy_gives_up_its_own_first(strategy: str, first_lost: str) -> None:
    owner = Owner(strategy)
    owner.cache("p", priority=1)
    owner.cache("q", priority=1)
    owner.cache("r", priority=5)
    owner.cache("r", priority=5)
    owner.cache("p", priority=1)
    owner.evict(1)
    assert [keys for keys in "pqr" if not owner.known(keys)] == [first_lost]


def test_a_family_that_saves_much_keeps_even_what_is_old_in_it() -> None:
    cold, lru = Owner("cold-subtree"), Owner("lru")
    for owner in (cold, lru):
        owner.cache("abcd")
        for _ in range(3):
            owner.cache("ab")  # hits of the family, not of its leaf
        owner.cache("wxyz")
        owner.evict(4)
    assert (cold.known("abcd"), cold.known("wxyz")) == (4, 0)
    assert (lru.known("abcd"), lru.known("wxyz")) == (0, 4)


def test_a_match_holds_until_the_tree_changes_just_there() -> None:
    owner = Owner()
    owner.cache("abcd")
    keys = list("abxy")
    match = owner.tree.match(keys, 4)  # ends inside a node

    def holds() -> bool:
        return owner.tree.holds(match, keys, 4)

    owner.cache("pq")
    assert holds()
    owner.cache("abx")  # goes on as the keys do
    assert not holds()
    match = owner.tree.match(keys, 4)
    owner.cache("abcd")
    assert match.blocks == 3
    assert holds()
    owner.cache("abxy")
    assert not holds()
    match = owner.tree.match(keys, 4)
    owner.evict(2)  # q and p
    assert holds()
    owner.cache("pq")
    owner.evict(2)  # d and c
    assert holds()
    owner.evict(1)  # the y that it ends with
    assert not holds()


def test_stale_entries_do_not_pile_up() -> None:
    owner = Owner()
    for keys in ("abc", "abd", "x"):
        owner.cache(keys)
    for _ in range(1000):
        owner.cache("abc")
    assert len(owner.tree._leaves) < 200
    owner.evict(5)
