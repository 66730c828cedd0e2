"""The block pool against plain lists, under any order of calls its owner may make."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterable
from types import FrameType

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pool_model import ListPool

from blis_py.core.blocks import BlockPool

KEYS = ("a", "b", "c")
"""Few, so that several blocks hold the same content: the one named first is found."""


def named(blocks: Iterable[int]) -> st.SearchStrategy[list[int]]:
    """Some of these blocks, in any order."""
    return st.lists(st.sampled_from(sorted(blocks)), min_size=1, unique=True)


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
        """Blocks whose ids are read later are those that `take` would have given at once."""
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
        """Private blocks of one table become named ones with one user each."""
        table = self.tables[data.draw(st.integers(0, len(self.tables) - 1))]
        names = data.draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=len(table), unique=True))
        blocks = [table.pop() for _ in names]
        self.tables = [t for t in self.tables if t]
        self.pool.remember(names, blocks)
        self.model.key_of.update(zip(blocks, names, strict=True))
        self.model.users.update(dict.fromkeys(blocks, 1))

    @precondition(lambda self: self.model.users)
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        """Any of them, also out of the middle of those that were freed together."""
        blocks = data.draw(named(self.model.users))
        assert self.pool.count_free(blocks) == [self.model.users[block] for block in blocks].count(0)
        self.pool.use(blocks)
        for block in blocks:
            if self.model.users[block] == 0:
                self.model.free.remove(block)
            self.model.users[block] += 1
        self.note_least()

    @precondition(lambda self: any(self.model.users.values()))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        blocks = data.draw(named(b for b, users in self.model.users.items() if users))
        self.pool.leave(blocks)
        for block in blocks:
            self.model.users[block] -= 1
        self.model.free += [block for block in reversed(blocks) if self.model.users[block] == 0]

    @precondition(lambda self: 1 in self.model.users.values())
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """Named blocks with one user become private ones again."""
        blocks = data.draw(named(b for b, users in self.model.users.items() if users == 1))
        self.pool.forget(blocks)
        for block in blocks:
            self.model.forget(block)
        self.tables.append(blocks)

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
    pool.remember(["content"], [block])
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
    pool.remember(["content"], [block])
    pool.leave([block])
    pool.reserve(1)
    pool.name_reserved()
    assert pool.find(["content"]) == []


def test_blocks_that_were_taken_behind_the_last_one_with_content_can_be_forgotten() -> None:
    pool = BlockPool(3)
    first = pool.take(1)
    pool.remember(["content"], first)
    pool.forget(pool.take(2))
    assert pool.find(["content"]) == first


def test_content_in_two_blocks_is_found_as_long_as_one_holds_it() -> None:
    pool = BlockPool(2)
    first, second = pool.take(2)
    pool.remember(["content"], [first])
    pool.remember(["content"], [second])
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


def calls(work: Callable[[], object]) -> int:
    """Functions of the pool that this calls."""
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_globals["__name__"] == BlockPool.__module__

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_prompt_costs_no_call_per_block() -> None:
    def life(blocks: int) -> None:
        """A prompt is computed, looked up again, freed, and its blocks come to hold something else."""
        pool, keys = BlockPool(blocks), list(range(blocks))
        pool.remember(keys, table := pool.take(blocks))
        pool.leave(table)
        pool.use(pool.find(keys))
        pool.leave(table)
        pool.take(blocks)
        assert pool.find(keys) == []

    assert calls(lambda: life(1000)) == calls(lambda: life(10))


def test_a_search_ends_with_the_first_content_that_no_block_holds() -> None:
    pool = BlockPool(4)
    pool.remember(["a", "b"], blocks := pool.take(2))
    wanted = iter(["a", "b", "unknown", "c", "d"])
    assert pool.find(wanted) == blocks
    assert list(wanted) == ["c", "d"]


def test_of_blocks_freed_together_the_last_is_reused_first_whatever_was_taken_back() -> None:
    pool = BlockPool(5)
    pool.remember("abcde", table := pool.take(5))
    pool.leave(table)
    pool.use([table[1], table[4]])
    assert [pool.take(1) for _ in range(3)] == [[table[3]], [table[2]], [table[0]]]
    pool.check([table[1], table[4], table[3], table[2], table[0]])


def test_blocks_that_have_never_been_used_take_no_memory() -> None:
    before = BlockPool(1_000_000)  # alike pools share their numbers
    tracemalloc.start()
    pool = BlockPool(before.total)
    pool.remember(["content"], pool.take(1))
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most_bytes < 10_000


def test_any_number_of_readers_follow_what_can_be_found() -> None:
    pool = BlockPool(1)
    first = pool.log.follow()
    pool.remember(["a"], table := pool.take(1))
    second = pool.log.follow()
    pool.leave(table)
    pool.take(1)
    assert first == [(True, ["a"]), (False, ["a"])]
    assert second == [(False, ["a"])]
