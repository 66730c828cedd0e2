"""The pool of KV blocks and the order in which free ones are reused."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from itertools import islice

CacheChanges = list[tuple[bool, Sequence[Hashable]]]
"""Log of what a cache begins (True) and ceases to hold, in order; the reader empties it. A key that is
already present may begin again."""


def block_count(tokens: int, block_size: int) -> int:
    """Number of blocks that this many tokens fill or begin."""
    return -(-tokens // block_size)


def names_in(extra_key: Hashable, keys: Sequence[Hashable]) -> Sequence[Hashable]:
    """Names of blocks among those of all namespaces (`Request.extra_key`), which share nothing."""
    return keys if extra_key is None else [(extra_key, key) for key in keys]


class CacheReader:
    """Unread part of a cache log, of one reader."""

    def __init__(self) -> None:
        self.changes: CacheChanges = []

    def note(self, begins: bool, keys: Sequence[Hashable]) -> None:
        """Append an event. Readers share the keys, which must not be modified afterwards."""
        self.changes.append((begins, keys))


class MemberReader(CacheReader):
    """Reader of one of several caches that are read as one: contents begin with the first cache that holds
    them and are gone with the last.

    Args:
        whole: reader of all of them.
        holders: by key, a bitmask of the caches that hold it; one for all of them.
        member: number of the cache.
    """

    def __init__(self, whole: CacheReader, holders: dict[Hashable, int], member: int) -> None:
        super().__init__()
        self._whole, self._holders, self._bit = whole, holders, 1 << member

    def note(self, begins: bool, keys: Sequence[Hashable]) -> None:
        holders, bit = self._holders, self._bit
        changed: list[Hashable] = []
        for key in keys:
            others = holders.get(key, 0) & ~bit
            if begins:
                holders[key] = others | bit
            elif others:
                holders[key] = others
            else:
                holders.pop(key, None)
            if not others:
                changed.append(key)
        if changed:
            self._whole.note(begins, changed)


class CacheLog:
    """Contents that a cache begins and ceases to hold, by `names_in`, for any number of readers."""

    def __init__(self) -> None:
        self.readers: list[CacheReader] = []

    def follow(self, reader: CacheReader | None = None) -> CacheChanges:
        """The list of a new reader, from now on.

        Args:
            reader: None = one of this cache alone.
        """
        reader = reader or CacheReader()
        self.readers.append(reader)
        return reader.changes

    def note(self, begins: bool, keys: Sequence[Hashable]) -> None:
        """Append an event to the list of every reader."""
        for reader in self.readers:
            reader.note(begins, keys)


@lru_cache(maxsize=4)
def _ids(total: int) -> tuple[int, ...]:
    """0..total-1: integers shared by the pools of a large cluster."""
    return tuple(range(total))


class BlockPool:
    """Block ids 0..total-1, first freed first reused.

    A free block may still hold content that is requested again, so the order of reuse matters for those
    blocks and only for those. Hence two kinds of entries in the free queue, each of blocks freed together:
    *chunks*, lists of blocks whose content cannot be found by key, moved by slices; and *runs* of cached
    blocks, any of which can be taken back by content.

    Within an entry the last block is reused first, as the tail of a sequence is worth less than its
    beginning. `num_free` counts both kinds.

    Blocks may also be *reserved*, as many as decoding requests need, and be given their ids on demand
    (`redeem`): usually when a request leaves, so that it takes its blocks at once and not one by one.

    The pool also accounts for its use: with `tick` set by the owner, `in_use_ticks` is the sum over past
    ticks of the blocks that were in use, at no cost per tick.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.num_free = total
        self._least_free = total
        self.tick = 0
        self._in_use_ticks = 0
        """Sum of the ticks at which blocks were given back minus those at which they were taken."""
        self._unnamed = 0
        """Reserved blocks that are still in the free queue, at its front."""
        self._named: list[int] = []
        """Reserved blocks that have left the free queue."""
        self._ids = _ids(total)
        self._touched = 0
        """Blocks from this one on have never been used; they are used first, in this order."""
        self._spare: list[int] = []
        """Used before all others, from the end: blocks without content that were given back to the front."""
        self._head: list[int] = []
        """Used next: the chunk being consumed, which has left the queue."""
        self._queue: deque[list[int] | dict[int, None]] = deque()
        """Chunks, and runs of cached blocks; some may be empty by now."""
        self._id_of: dict[Hashable, int] = {}
        """Content key -> block, whether in use or free."""
        self._twins: dict[Hashable, list[int]] = {}
        """Content key -> further blocks with the same content, computed concurrently by several requests."""
        self._key_of: list[Hashable] = []
        """Content key of each block, None if it has none. This and the next two lists are empty until a block
        gets a key, and then as long as blocks have been used."""
        self._users: list[int] = []
        """Requests using each block that has a content key."""
        self._run_of: list[dict[int, None]] = []
        """The run that contains each unused block."""
        self.shared_uses = 0
        """Uses of cached blocks beyond the first of each."""
        self.log = CacheLog()

    def take(self, count: int) -> list[int]:
        """Remove `count` blocks, at least one, from the free queue and forget their contents.

        The caller has checked `num_free`.
        """
        self.num_free -= count
        self._in_use_ticks -= count * self.tick
        return self._remove(count)

    def reserve(self, count: int) -> None:
        """Take `count` blocks that get their ids later. The caller has checked `num_free`."""
        self.num_free -= count
        self._unnamed += count

    def redeem(self, count: int, first_tick: int, every: int) -> list[int]:
        """Ids for `count` reserved blocks: one in use since `first_tick`, each other `every` ticks later."""
        if self._unnamed:
            self.name_reserved()
        blocks = self._named[-count:]
        del self._named[-count:]
        self._in_use_ticks -= count * first_tick + every * (count * (count - 1) // 2)
        return blocks

    def name_reserved(self) -> None:
        """Remove the reserved blocks from the free queue, so that their old contents cannot be found."""
        if self._unnamed:
            self._named += self._remove(self._unnamed)
            self._unnamed = 0

    @property
    def num_reserved(self) -> int:
        """Reserved blocks not redeemed yet."""
        return self._unnamed + len(self._named)

    def _remove(self, count: int) -> list[int]:
        if self._spare:
            spare = self._spare[-count:]
            del self._spare[-count:]
            spare.reverse()
            return spare + self._remove(count - len(spare)) if len(spare) < count else spare
        head = self._head
        if len(head) < count:
            return self._remove_across_chunks(count)
        blocks = head[-count:]
        del head[-count:]
        return blocks

    def _remove_across_chunks(self, count: int) -> list[int]:
        if self._touched < self.total:
            blocks = self._first_use(count)
        else:
            blocks = self._head.copy()
            self._head.clear()
        # A chunk is shortened as its blocks are reused: the request that kept it sees what is left.
        while len(blocks) < count:
            entry = self._queue.popleft()
            missing = count - len(blocks)
            if isinstance(entry, dict):
                blocks += self._oldest(entry, missing)
                if entry:
                    self._queue.appendleft(entry)
            elif len(entry) <= missing:
                blocks += entry
                entry.clear()
            else:
                blocks += entry[-missing:]
                del entry[-missing:]
                self._head = entry
        return blocks

    def _first_use(self, count: int) -> list[int]:
        """Up to `count` blocks that have never been used."""
        first = self._touched
        self._touched = end = min(first + count, self.total)
        blocks = list(self._ids[first:end])
        blocks.reverse()
        return blocks

    def _oldest(self, run: dict[int, None], count: int) -> list[int]:
        """Remove up to `count` blocks from the end of a run, and forget their contents."""
        blocks = list(islice(reversed(run), count))
        for block in blocks:
            del run[block]
        self.forget(blocks)
        return blocks

    def give_back(self, chunk: list[int]) -> None:
        """Append blocks to the free queue as one chunk; the pool keeps the list itself."""
        if chunk:
            self._queue.append(chunk)
            self._enter_queue(len(chunk))

    def give_back_first(self, blocks: list[int]) -> None:
        """Put blocks without content at the front of the free queue."""
        if blocks:
            self.name_reserved()
            self._spare += blocks
            self._enter_queue(len(blocks))

    def reclaim(self, chunk: list[int], count: int) -> list[int]:
        """Take the first `count` blocks back out of a chunk that is still in the free queue."""
        blocks = chunk[:count]
        del chunk[:count]
        self._leave_queue(count)
        return blocks

    def find(self, keys: Iterable[Hashable]) -> list[int]:
        """The blocks that hold the contents `keys`, in order, up to the first key that is not cached."""
        blocks, id_of = list[int](), self._id_of
        for key in keys:
            block = id_of.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def contains(self, key: Hashable) -> bool:
        """Whether a block holds the content `key`."""
        return key in self._id_of

    def count_free(self, blocks: Iterable[int]) -> int:
        """Number of these cached blocks that are in the free queue."""
        return list(map(self._users.__getitem__, blocks)).count(0)

    def is_cached(self, block: int) -> bool:
        """Whether the block's content can be found by key."""
        return block < len(self._key_of) and self._key_of[block] is not None

    def remember(self, keys: Sequence[Hashable], blocks: Sequence[int]) -> None:
        """Register the contents of some blocks, each in use by one request."""
        if len(self._key_of) < self._touched:
            self._cover_touched()
        id_of, key_of, users = self._id_of, self._key_of, self._users
        for key, block in zip(keys, blocks, strict=True):
            if id_of.setdefault(key, block) != block:
                self._twins.setdefault(key, []).append(block)
            key_of[block] = key
            users[block] = 1
        if self.log.readers:
            self.log.note(True, keys)

    def _cover_touched(self) -> None:
        more = self._touched - len(self._key_of)
        self._key_of += [None] * more
        self._users += [0] * more
        self._run_of += [{}] * more

    def forget(self, blocks: Sequence[int]) -> None:
        """Undo `remember`: these blocks are about to hold something else, or never held it."""
        if not self._key_of:
            return
        if len(self._key_of) < self._touched:
            self._cover_touched()
        id_of, key_of, twins = self._id_of, self._key_of, self._twins
        gone: list[Hashable] = []
        for block in blocks:
            key = key_of[block]
            if key is None:
                continue
            key_of[block] = None
            if twins and key in twins:
                self._forget_twin(key, block)
            else:
                del id_of[key]
                gone.append(key)
        if gone and self.log.readers:
            self.log.note(False, gone)

    def forget_free(self) -> None:
        """Forget the contents of all unused blocks."""
        for entry in self._queue:
            if isinstance(entry, dict):
                self.forget(list(entry))

    def _forget_twin(self, key: Hashable, block: int) -> None:
        twins = self._twins[key]
        if self._id_of[key] == block:
            self._id_of[key] = twins.pop(0)
        else:
            twins.remove(block)
        if not twins:
            del self._twins[key]

    def use(self, blocks: Sequence[int]) -> None:
        """Add a user to these cached blocks."""
        users, run_of, free = self._users, self._run_of, 0
        for block in blocks:
            if users[block] == 0:
                run = run_of[block]
                del run[block]
                if not run:
                    run.clear()  # without the spare capacity
                free += 1
            else:
                self.shared_uses += 1
            users[block] += 1
        if free:
            self._leave_queue(free)

    def leave(self, blocks: Sequence[int]) -> None:
        """Remove a user from these cached blocks, given in the order of their content.

        Blocks without users go to the end of the free queue.
        """
        users, run_of = self._users, self._run_of
        run = dict[int, None]()
        for block in blocks:
            users[block] -= 1
            if users[block] == 0:
                run[block] = None
                run_of[block] = run
            else:
                self.shared_uses -= 1
        if run:
            self._queue.append(run)
            self._enter_queue(len(run))

    @property
    def num_blank(self) -> int:
        """A lower bound on the blocks that can be taken before any content is forgotten."""
        return self.total - self._touched + len(self._spare) + len(self._head) - self._unnamed

    @property
    def in_use(self) -> int:
        """Blocks in use."""
        return self.total - self.num_free

    @property
    def least_free(self) -> int:
        """The minimum number of free blocks so far."""
        return min(self._least_free, self.num_free)

    @property
    def in_use_ticks(self) -> int:
        """Sum over the ticks up to the present one of the blocks in use during each, except reserved ones."""
        return self._in_use_ticks + (self.in_use - self.num_reserved) * self.tick

    def _leave_queue(self, count: int) -> None:
        self.num_free -= count
        self._in_use_ticks -= count * self.tick

    def _enter_queue(self, count: int) -> None:
        if self.num_free < self._least_free:
            self._least_free = self.num_free  # free blocks are fewest just before some are given back
        self.num_free += count
        self._in_use_ticks += count * self.tick

    def _blank(self) -> list[int]:
        """Free blocks that are in no entry of the queue."""
        return [*range(self._touched, self.total), *self._spare, *self._head]

    def check(self, held: list[int]) -> None:
        """Check that free and held blocks are exactly the pool.

        Args:
            held: every block of every request's table; cached blocks as often as they are used.

        Raises:
            AssertionError: they are not.
        """
        free = self._blank()
        for entry in self._queue:
            free += entry
        assert len(free) == self.num_free, f"{len(free)} blocks are free, {self.num_free} counted"
        assert len(set(free)) == len(free), "a block is free twice"
        assert sorted(set(free) | set(held)) == list(range(self.total)), "a block is lost"
        assert not set(free) & set(held), "a block is free and in use"
        for block in set(held):
            users = self._users[block] if self.is_cached(block) else 1
            assert held.count(block) == users, f"block {block} has {held.count(block)} users, {users} counted"
        assert len(held) - len(set(held)) == self.shared_uses, "uses of shared blocks are miscounted"
