"""The pool of KV blocks and the order in which free ones are reused."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable


class BlockPool:
    """Block ids 0..total-1, first freed first reused.

    A free block may still hold content that somebody asks for again, so the order of reuse matters
    for those, and only for those. Hence two kinds of entries in the free queue: *chunks*, lists of
    blocks freed together whose content nobody else can name, moved by slices; and *cached* blocks,
    one entry each, that can be taken back from the middle of the queue by content.

    Within a chunk the last block is reused first, as the tail of a sequence is worth less than its
    beginning. `num_free` counts both kinds.

    Blocks may also be *reserved*, as many as decoding requests need, and be given their ids when somebody
    asks (`redeem`): mostly when a request leaves, so that it takes its blocks once and not one by one.

    The pool also keeps the books of its use: with `tick` set by the owner, `in_use_ticks` is the sum
    over past ticks of the blocks that were in use, at no cost per tick.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.num_free = total
        self._least_free = total
        self.tick = 0
        self._in_use_ticks = 0
        """Sum over blocks given back minus those taken of the tick at which it happened."""
        self._unnamed = 0
        """Reserved blocks that are still in the free queue, at its front."""
        self._named: list[int] = []
        """Reserved blocks that have left it."""
        self._head: list[int] = list(range(total - 1, -1, -1))
        """The chunk being consumed; it has left the queue."""
        self._queue: OrderedDict[int, list[int] | None] = OrderedDict()
        """Cached blocks under their id (value None), chunks under negative serial numbers."""
        self._chunks = 0
        self._id_of: dict[Hashable, int] = {}
        """Content key -> block, whether in use or free."""
        self._twins: dict[Hashable, list[int]] = {}
        """Content key -> further blocks with the same content, computed by requests side by side."""
        self._key_of: dict[int, Hashable] = {}
        self._users: dict[int, int] = {}
        """Requests using each block that has a content key."""

    def take(self, count: int) -> list[int]:
        """Removes `count` blocks, at least one, from the free queue, forgetting what they held.

        The caller has checked `num_free`.
        """
        self.num_free -= count
        self._in_use_ticks -= count * self.tick
        return self._remove(count)

    def reserve(self, count: int) -> None:
        """Takes `count` blocks that get their ids later. The caller has checked `num_free`."""
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
        """Removes the reserved blocks from the free queue: nobody shall find what they held."""
        if self._unnamed:
            self._named += self._remove(self._unnamed)
            self._unnamed = 0

    @property
    def num_reserved(self) -> int:
        """Reserved blocks not redeemed yet."""
        return self._unnamed + len(self._named)

    def _remove(self, count: int) -> list[int]:
        head = self._head
        if len(head) < count:
            return self._remove_across_chunks(count)
        blocks = head[-count:]
        del head[-count:]
        return blocks

    def _remove_across_chunks(self, count: int) -> list[int]:
        # A chunk is shortened as its blocks go: who kept it can see what is left.
        blocks = self._head.copy()
        self._head.clear()
        while len(blocks) < count:
            block, chunk = self._queue.popitem(last=False)
            missing = count - len(blocks)
            if chunk is None:
                self.forget(block)
                blocks.append(block)
            elif len(chunk) <= missing:
                blocks += chunk
                chunk.clear()
            else:
                blocks += chunk[-missing:]
                del chunk[-missing:]
                self._head = chunk
        return blocks

    def give_back(self, chunk: list[int]) -> None:
        """Appends blocks to the free queue as one chunk; the pool keeps the list itself."""
        if chunk:
            self._chunks += 1
            self._queue[-self._chunks] = chunk
            self._enter_queue(len(chunk))

    def reclaim(self, chunk: list[int], count: int) -> list[int]:
        """Takes the first `count` blocks back out of a chunk that is still in the free queue."""
        blocks = chunk[:count]
        del chunk[:count]
        self._leave_queue(count)
        return blocks

    def find(self, keys: Iterable[Hashable]) -> list[int]:
        """The blocks that hold the contents `keys`, in order, up to the first that nobody holds."""
        blocks: list[int] = list(map(self._id_of.get, keys))  # type: ignore[arg-type]
        if None in blocks:
            del blocks[blocks.index(None) :]  # type: ignore[arg-type]
        return blocks

    def knows(self, key: Hashable) -> bool:
        """Whether some block holds the content `key`."""
        return key in self._id_of

    def count_free(self, blocks: Iterable[int]) -> int:
        """How many of these cached blocks are in the free queue."""
        return list(map(self._users.__getitem__, blocks)).count(0)

    def is_cached(self, block: int) -> bool:
        """Whether the block's content can be found by key."""
        return block in self._key_of

    def remember(self, key: Hashable, block: int) -> None:
        """Names the content of a block in use by one request."""
        if key not in self._id_of:
            self._id_of[key] = block
        else:
            self._twins.setdefault(key, []).append(block)
        self._key_of[block] = key
        self._users[block] = 1

    def forget(self, block: int) -> None:
        """Takes back `remember`: the block is about to hold something else, or never held it."""
        key = self._key_of.pop(block, None)
        if key is None:
            return
        del self._users[block]
        twins = self._twins.get(key)
        if self._id_of[key] != block:
            self._twins[key].remove(block)
        elif twins:
            self._id_of[key] = twins.pop(0)
        else:
            del self._id_of[key]
        if twins is not None and not twins:
            del self._twins[key]

    def use(self, blocks: list[int]) -> None:
        """One more request uses these cached blocks."""
        users = list(map(self._users.__getitem__, blocks))
        self._users.update(zip(blocks, map((1).__add__, users), strict=True))
        if 0 in users:
            for block, others in zip(blocks, users, strict=True):
                if others == 0:
                    del self._queue[block]
            self._leave_queue(users.count(0))

    def leave(self, blocks: list[int]) -> None:
        """One request less uses these cached blocks; those nobody uses go to the end of the free queue."""
        users = list(map(self._users.__getitem__, blocks))
        self._users.update(zip(blocks, map((-1).__add__, users), strict=True))
        if 1 in users:
            self._queue.update((b, None) for b, count in zip(blocks, users, strict=True) if count == 1)
            self._enter_queue(users.count(1))

    @property
    def num_blank(self) -> int:
        """Blocks, at least, that can be taken before any content is forgotten."""
        return len(self._head) - self._unnamed

    @property
    def in_use(self) -> int:
        """Blocks in use."""
        return self.total - self.num_free

    @property
    def least_free(self) -> int:
        """The fewest free blocks there have been."""
        return min(self._least_free, self.num_free)

    @property
    def in_use_ticks(self) -> int:
        """Sum over the ticks up to the present one of the blocks in use during each, reserved ones apart."""
        return self._in_use_ticks + (self.in_use - self.num_reserved) * self.tick

    def _leave_queue(self, count: int) -> None:
        self.num_free -= count
        self._in_use_ticks -= count * self.tick

    def _enter_queue(self, count: int) -> None:
        if self.num_free < self._least_free:
            self._least_free = self.num_free  # free blocks are fewest just before some are given back
        self.num_free += count
        self._in_use_ticks += count * self.tick

    def check(self, held: list[int]) -> None:
        """Raises `AssertionError` unless free and held blocks are exactly the pool.

        Args:
            held: every block of every request's table; cached blocks as often as they are used.
        """
        free = list(self._head)
        for block, chunk in self._queue.items():
            free += [block] if chunk is None else chunk
        assert len(free) == self.num_free, f"{len(free)} blocks are free, {self.num_free} counted"
        assert len(set(free)) == len(free), "a block is free twice"
        assert sorted(set(free) | set(held)) == list(range(self.total)), "a block is lost"
        assert not set(free) & set(held), "a block is free and in use"
        for block in set(held):
            users = self._users.get(block, 1)
            assert held.count(block) == users, f"block {block} has {held.count(block)} users, {users} counted"
