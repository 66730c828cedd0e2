"""The radix tree against a set of prefixes, under any order of calls its owner may make."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from blis_py.core.eviction import EVICTION_POLICIES
from blis_py.core.radix import Match, RadixTree
from blis_py.core.radix_node import Node

Prefix = tuple[str, ...]
"""A namespace, then keys."""

sequences = st.lists(st.sampled_from("ab"), max_size=7)
namespaces = st.sampled_from(["", "", "salt"])


@dataclass(eq=False)
class User:
    """Holds all prefixes of `held`; the rest of `keys` is in blocks of its own."""

    keys: Prefix
    held: Prefix
    node: Node
    blocks: list[int]
    private: list[int]


@dataclass(frozen=True)
class Memo:
    """A waiting request's match."""

    keys: Prefix
    match: Match


class TreeMachine(RuleBasedStateMachine):
    """Users match, lock, compute, publish and leave; now and then blocks are evicted.

    The model: which prefixes are known, in which block, when each was first known and last given up by a
    user, and how often it was found. Each strategy forgets the least of those that no user holds and no known
    one continues.
    """

    @initialize(strategy=st.sampled_from(list(EVICTION_POLICIES)))
    def start(self, strategy: str) -> None:
        self.strategy = strategy
        self.tree = RadixTree(EVICTION_POLICIES[strategy])
        self.known: dict[Prefix, int] = {}
        self.left_at: dict[Prefix, int] = {}
        self.known_since: dict[Prefix, int] = {}
        self.found: Counter[Prefix] = Counter()
        self.saved: Counter[Prefix] = Counter()
        """Blocks that were found, by their first one."""
        self.time = 0
        self.users: list[User] = []
        self.memos: list[Memo] = []
        self.free: list[int] = []
        self.blocks = 0

    def block(self) -> int:
        """One unused: reuse shows whether something evicted is still used."""
        if self.free:
            return self.free.pop()
        self.blocks += 1
        return self.blocks - 1

    def longest(self, keys: Prefix) -> Prefix:
        """The longest known beginning, the namespace at least."""
        known = (end for end in range(len(keys), 1, -1) if keys[:end] in self.known)
        return keys[: next(known, 1)]

    def users_of(self, prefix: Prefix) -> int:
        return sum(user.held[: len(prefix)] == prefix for user in self.users)

    def match(self, keys: Prefix) -> Match:
        return self.tree.match(list(keys[1:]), len(keys) - 1, keys[0])

    @rule(namespace=namespaces, keys=sequences, at_once=st.booleans())
    def admit(self, namespace: str, keys: list[str], at_once: bool) -> None:
        whole = (namespace, *keys)
        match = self.match(whole)
        self.memos.append(Memo(whole, match))
        held = self.longest(whole)
        assert match.blocks == len(held) - 1
        blocks = self.tree.blocks(match)
        unlocked = sum(not self.users_of(held[:end]) for end in range(2, len(held) + 1))
        assert self.tree.unlocked(match) == unlocked
        before = self.tree.evictable_size()
        for end in range(2, len(held) + 1):
            self.found[held[:end]] += 1
            self.saved[held[:2]] += 1
        node = self.tree.lock(match)
        assert before - self.tree.evictable_size() == unlocked
        private = [self.block() for _ in whole[len(held) :]]
        user = User(whole, held, node, blocks, private)
        self.users.append(user)
        if private and at_once:
            self.insert(user, len(private))

    @precondition(lambda self: any(user.private for user in self.users))
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        user = data.draw(st.sampled_from([user for user in self.users if user.private]))
        self.insert(user, data.draw(st.integers(1, len(user.private))))

    def insert(self, user: User, count: int) -> None:
        self.time += 1
        first, end = len(user.held), len(user.held) + count
        mine, user.private = user.private[:count], user.private[count:]
        there = len(self.longest(user.keys[:end])) - first
        user.node, present = self.tree.insert(user.node, list(user.keys[first:end]), list(mine))
        assert present == [self.known[user.keys[: first + i + 1]] for i in range(there)]
        self.free += mine[:there]
        for i in range(there, count):
            self.known[user.keys[: first + i + 1]] = mine[i]
            self.known_since[user.keys[: first + i + 1]] = self.time
        user.blocks += present + mine[there:]
        user.held = user.keys[:end]

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        user = self.users.pop(data.draw(st.integers(0, len(self.users) - 1)))
        self.tree.unlock(user.node)
        self.free += user.private
        self.time += 1
        for end in range(2, len(user.held) + 1):
            self.left_at[user.held[:end]] = self.time

    @precondition(lambda self: self.tree.evictable_size())
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, min(self.tree.evictable_size(), 4)))
        gone = self.tree.evict(count)
        assert len(gone) == count
        for block in gone:
            leaves = [
                prefix
                for prefix in self.known
                if not self.users_of(prefix)
                and not any(p[: len(prefix)] == prefix and len(p) > len(prefix) for p in self.known)
            ]
            (lost,) = (prefix for prefix in leaves if self.known[prefix] == block)
            assert self.worth(lost) == min(map(self.worth, leaves))
            del self.known[lost], self.known_since[lost]
            self.found.pop(lost, None)
        self.free += gone

    def worth(self, prefix: Prefix) -> tuple[int, ...]:
        left_at = self.left_at[prefix]
        match self.strategy:
            case "lfu":
                return self.found[prefix], left_at
            case "fifo":
                return (self.known_since[prefix],)
            case "mru":
                return (-left_at,)
            case "cold-subtree":
                return self.saved[prefix[:2]], left_at
        return (left_at,)  # all are as urgent

    @rule(namespace=namespaces, keys=sequences)
    def ask(self, namespace: str, keys: list[str]) -> None:
        prefix = (namespace, *keys)
        self.memos.append(Memo(prefix, self.match(prefix)))

    @invariant()
    def a_match_that_holds_is_what_matching_again_would_find(self) -> None:
        for memo in getattr(self, "memos", []):
            if self.tree.holds(memo.match, list(memo.keys[1:]), len(memo.keys) - 1):
                longest = self.longest(memo.keys)
                assert memo.match.blocks == len(longest) - 1
                expected = [self.known[longest[:end]] for end in range(2, len(longest) + 1)]
                assert self.tree.blocks(memo.match) == expected

    @invariant()
    def books_and_contents_agree(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.tree.check()
        held = {user.held[:end] for user in self.users for end in range(2, len(user.held) + 1)}
        assert self.tree.protected_size() == len(held)
        assert self.tree.evictable_size() == len(self.known) - len(held)
        for user in self.users:  # nothing in use was evicted or given to another
            assert user.blocks == [self.known[user.held[:end]] for end in range(2, len(user.held) + 1)]
        for prefix in self.known:
            match = self.match(prefix)
            assert self.tree.blocks(match)[-1] == self.known[prefix]
            assert match.blocks == len(prefix) - 1
        private = [block for user in self.users for block in user.private]
        everything = [*self.known.values(), *private, *self.free]
        assert sorted(everything) == list(range(self.blocks))


TestTreeMatchesASetOfPrefixes = TreeMachine.TestCase
TestTreeMatchesASetOfPrefixes.settings = settings(max_examples=60, stateful_step_count=40)
