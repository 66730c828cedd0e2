"""The queues and KV caches of several ranks as one, for what reads the state of an instance."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from blis_py.core._fifo import FifoQueue
from blis_py.core.blocks import BlockPool, CacheChanges, CacheReader, MemberReader
from blis_py.core.kv import KVCache
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler


class RankQueues(FifoQueue):
    """All waiting requests, to be read only: each rank admits from its own queue."""

    def __init__(self, ranks: list[Scheduler]) -> None:
        super().__init__()
        self._ranks = ranks

    def __len__(self) -> int:
        return sum(len(rank.waiting) for rank in self._ranks)

    def __iter__(self) -> Iterator[Request]:
        return (request for rank in self._ranks for request in rank.waiting)


class RankedPool(BlockPool):
    """Use of the blocks of all ranks.

    Args:
        book: brings every rank up to date.
    """

    def __init__(self, ranks: list[Scheduler], book: Callable[[], None]) -> None:
        super().__init__(0)
        self._ranks, self._book = ranks, book
        self.total = sum(rank.kv.pool.total for rank in ranks)
        self.most_used = 0
        """Most blocks in use at one time, by launched steps; a rank alone may have had more for requests that
        it preempted at once."""

    @property
    def in_use(self) -> int:
        self._book()
        return sum(rank.kv.pool.in_use for rank in self._ranks)

    @property
    def least_free(self) -> int:
        self._book()
        pools = [rank.kv.pool for rank in self._ranks]
        return self.total - max(self.most_used, *(pool.total - pool.least_free for pool in pools))

    @property
    def in_use_ticks(self) -> int:
        self._book()
        return sum(rank.kv.pool.in_use_ticks for rank in self._ranks)

    def name_reserved(self) -> None:
        for rank in self._ranks:
            rank.kv.pool.name_reserved()


class RankedKV(KVCache):
    """Prefix caches of all ranks: each finds what it has computed itself; the log of their contents has what
    any of them holds."""

    def __init__(self, ranks: list[Scheduler], pool: BlockPool) -> None:
        first = ranks[0].kv
        super().__init__(pool, first.block_size, first.prefix_caching)
        self._ranks = ranks

    def follow(self, reader: CacheReader | None = None) -> CacheChanges:
        whole, holders = reader or CacheReader(), dict[Hashable, int]()
        for number, rank in enumerate(self._ranks):
            rank.kv.follow(MemberReader(whole, holders, number))
        return whole.changes

    def forget_unused(self) -> None:
        for rank in self._ranks:
            rank.kv.forget_unused()
