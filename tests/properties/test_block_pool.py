"""The block pool against plain lists, under any order of calls its owner may make."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pool_model import ListPool

from blis_py.core.blocks import BlockPool

KEYS = ("a", "b", "c")
"""Few, so that several blocks hold the same content: the one named first is found."""


class PoolMachine(RuleBasedStateMachine):
    """Tables of private blocks, shared blocks with any number of users, and chunks that lie free."""

    @initialize(total=st.integers(1, 25))
    def start(self, total: int) -> None:
        self.pool = BlockPool(total)
        self.model = ListPool(total)
        self.tables: list[list[int]] = []
        self.released: list[tuple[list[int], list[int]]] = []
        """The chunks given back, with a copy of what is left of each."""
        self.least_free = total

    def note_least(self) -> None:
        self.least_free = min(self.least_free, self.model.num_free)

    @precondition(lambda self: self.model.num_free)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.model.num_free))
        blocks = self.pool.take(count)
        assert len(blocks) == count
        self.model.take(list(blocks))
        self.tables.append(blocks)
        self.note_least()

    @precondition(lambda self: self.model.num_free)
    @rule(data=st.data(), ticks=st.integers(0, 3), give_back=st.booleans())
    def reserve(self, data: st.DataObject, ticks: int, give_back: bool) -> None:
        """Blocks whose ids are asked for later are those that `take` would have given at once."""
        count = data.draw(st.integers(1, self.model.num_free))
        self.pool.reserve(count)
        assert self.pool.num_free == self.model.num_free - count
        self.least_free = min(self.least_free, self.pool.num_free)
        returned = self.tables.pop() if give_back and self.tables else []
        self.pool.give_back(returned)
        self.pool.tick += ticks
        self.model.use_of_ticks += [self.model.in_use + count - len(returned)] * ticks
        blocks = self.pool.redeem(count, first_tick=self.pool.tick - ticks, every=0)
        assert len(blocks) == count
        self.model.take(list(blocks))
        self.model.give_back(list(returned))
        self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        chunk = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.model.give_back(list(chunk))
        self.released.append((chunk, list(chunk)))
        self.pool.give_back(chunk)

    @precondition(lambda self: self.released)
    @rule(data=st.data())
    def reclaim(self, data: st.DataObject) -> None:
        chunk, _ = self.released[data.draw(st.integers(0, len(self.released) - 1))]
        count = data.draw(st.integers(0, len(chunk)))
        expected = chunk[:count]
        blocks = self.pool.reclaim(chunk, count)
        assert blocks == expected
        for block in blocks:
            self.model.free.remove(block)
        if blocks:
            self.tables.append(blocks)
        self.note_least()

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def remember(self, data: st.DataObject) -> None:
        """One private block becomes a named one with one user."""
        table = self.tables[data.draw(st.integers(0, len(self.tables) - 1))]
        block = table.pop()
        self.tables = [t for t in self.tables if t]
        key = data.draw(st.sampled_from(KEYS))
        self.pool.remember(key, block)
        self.model.key_of[block] = key
        self.model.users[block] = 1

    @precondition(lambda self: self.model.users)
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.model.users)))
        assert (self.pool.count_free([block]) == 1) == (self.model.users[block] == 0)
        self.pool.use([block])
        if self.model.users[block] == 0:
            self.model.free.remove(block)
        self.model.users[block] += 1
        self.note_least()

    @precondition(lambda self: any(self.model.users.values()))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(b for b, users in self.model.users.items() if users)))
        self.pool.leave([block])
        self.model.users[block] -= 1
        if self.model.users[block] == 0:
            self.model.free.append(block)

    @precondition(lambda self: 1 in self.model.users.values())
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """A named block with one user becomes a private one again."""
        block = data.draw(st.sampled_from(sorted(b for b, users in self.model.users.items() if users == 1)))
        self.pool.forget(block)
        self.model.forget(block)
        self.tables.append([block])

    @rule(ticks=st.integers(1, 5))
    def time_passes(self, ticks: int) -> None:
        self.model.use_of_ticks += [self.model.in_use] * ticks
        self.pool.tick += ticks

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool, model = self.pool, self.model
        assert pool.num_free == model.num_free
        assert pool.in_use + pool.num_free == pool.total
        assert pool.in_use_ticks == sum(model.use_of_ticks)
        assert pool.least_free == self.least_free
        for key in KEYS:
            assert pool.find([key]) == list(model.holders(key))[:1]
        assert all(map(pool.is_cached, model.key_of))
        for table in self.tables:
            assert not any(map(pool.is_cached, table))
        named = [block for block, users in model.users.items() for _ in range(users)]
        pool.check([block for table in self.tables for block in table] + named)


TestPoolMatchesLists = PoolMachine.TestCase
TestPoolMatchesLists.settings = settings(max_examples=60, stateful_step_count=30)


def test_content_is_gone_once_its_block_is_taken_again() -> None:
    pool = BlockPool(1)
    (block,) = pool.take(1)
    pool.remember("content", block)
    pool.leave([block])
    assert pool.find(["content"]) == [block]
    pool.take(1)
    assert pool.find(["content"]) == []


def test_reserved_blocks_count_from_when_each_was_needed() -> None:
    pool = BlockPool(10)
    pool.reserve(1)
    pool.tick = 4
    pool.reserve(2)
    assert pool.num_free == 7
    pool.tick = 10
    blocks = pool.redeem(3, first_tick=0, every=4)
    assert (len(set(blocks)), pool.num_reserved) == (3, 0)
    pool.tick = 20
    assert pool.in_use_ticks == 20 + 16 + 12
    pool.check(blocks)


def test_content_is_gone_once_its_block_is_reserved() -> None:
    pool = BlockPool(1)
    (block,) = pool.take(1)
    pool.remember("content", block)
    pool.leave([block])
    pool.reserve(1)
    pool.name_reserved()
    assert pool.find(["content"]) == []


def test_content_in_two_blocks_is_found_as_long_as_one_holds_it() -> None:
    pool = BlockPool(2)
    first, second = pool.take(2)
    pool.remember("content", first)
    pool.remember("content", second)
    pool.leave([first])
    pool.take(1)
    assert pool.find(["content"]) == [second]
    pool.leave([second])
    pool.take(1)
    assert pool.find(["content"]) == []


@pytest.mark.parametrize("held", [[0], [0, 1, 1], [1, 2]])
def test_the_check_finds_blocks_that_are_lost_or_held_twice(held: list[int]) -> None:
    pool = BlockPool(4)
    taken = pool.take(2)
    pool.check(taken)
    with pytest.raises(AssertionError):
        pool.check([taken[i % 2] if i < 2 else 3 for i in held])
