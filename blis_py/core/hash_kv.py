"""KV cache with blocks found by the hash of their content (vLLM's design)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence

from blis_py.core.blocks import BlockPool, CacheChanges, CacheReader, block_count, names_in
from blis_py.core.kv import KVCache
from blis_py.core.request import Request


class HashKV(KVCache):
    """Full blocks by content key, in use or free.

    Shareable full blocks of a prompt are registered under their content key as soon as the step that computes
    them is planned, so a request planned later in the same step shares them already; those of an answer when
    the request leaves. A released block can be found until it is reused.
    """

    def __init__(
        self, num_blocks: int, block_size: int, prefix_caching: bool, unhashed_first: bool = False
    ) -> None:
        super().__init__(BlockPool(num_blocks), block_size, prefix_caching)
        self._unhashed_first = unhashed_first and prefix_caching
        """Blocks that cannot be found are reused before all others."""

    def match(self, request: Request) -> int:
        """See `KVCache`. A block is never forgotten before those behind it, so the prefix ends where one is
        cached and the next is not.
        """
        if not self.prefix_caching:
            return 0
        self.pool.name_reserved()
        limit = min((request.num_tokens - 1) // self.block_size, len(request.block_keys))
        blocks = min(request.match or 0, limit)

        def unknown(index: int) -> bool:
            return not self.pool.contains(_name(request, index))

        if (blocks and unknown(blocks - 1)) or (blocks < limit and not unknown(blocks)):
            request.match = blocks = bisect_left(range(limit), True, key=unknown)
        return blocks

    def cached_blocks(self, request: Request) -> list[int]:
        if not self.prefix_caching:
            return []
        self.pool.name_reserved()
        limit = (request.num_tokens - 1) // self.block_size
        return self.pool.find(_names(request, 0, limit))

    def follow(self, reader: CacheReader | None = None) -> CacheChanges:
        return self.pool.log.follow(reader)

    def blocks_needed(self, request: Request, shared: list[int], own: int, new_tokens: int) -> int:
        fresh = block_count(new_tokens, self.block_size)  # cached blocks are full
        return fresh + own + self.pool.count_free(shared) if shared or own else fresh

    def admit(
        self,
        request: Request,
        shared: list[int],
        own: int,
        new_tokens: int,
        computed: bool = True,
        ahead: int = 0,
    ) -> bool:
        pool = self.pool
        if not self.can_admit(request, shared, own, new_tokens + ahead):
            return False
        fresh = block_count(new_tokens + ahead, self.block_size)
        if shared or own:
            self._reuse(request, shared, own)
            if fresh:
                request.block_table += pool.take(fresh)
        elif fresh:
            request.block_table = pool.take(fresh)
        if computed and request.block_keys and self.prefix_caching:
            cached = len(shared) + own
            self._register(request, cached, cached + new_tokens // self.block_size)
        return True

    def _reuse(self, request: Request, shared: list[int], own: int) -> None:
        self.pool.use(shared)
        request.block_table += shared
        if own:
            assert request.kept_blocks is not None
            request.block_table += self.pool.reclaim(request.kept_blocks, own)

    def publish(self, request: Request) -> None:
        """No-op: blocks were registered when their step was planned."""

    def publish_supplied(self, request: Request, first_tokens: int) -> None:
        if request.block_keys and self.prefix_caching:
            self._register(request, first_tokens // self.block_size, request.computed // self.block_size)

    def _register(self, request: Request, first: int, end: int) -> None:
        names = _names(request, first, end)
        self.pool.remember(names, request.block_table[first : first + len(names)])

    def release(self, request: Request, keep: bool = False, unknown: int = 0) -> None:
        self.settle(request, request.computed)
        full = (request.computed - unknown) // self.block_size
        table, request.block_table = request.block_table, []
        named: list[int] = []
        if request.block_keys and self.prefix_caching:
            if len(request.block_keys) * self.block_size > request.prompt_tokens:
                self._register_answer(request, table, full)
            named = table[: len(request.block_keys)]
            table = table[len(named) :]
        own = max(full - len(named), 0)
        if self._unhashed_first:
            self.pool.give_back_first(table[own:])
            del table[own:]
        self.pool.give_back(table)
        if named:
            self._release_named(named, full)
        if keep and self.prefix_caching:
            request.kept_blocks = table
            request.kept_full = own

    def _register_answer(self, request: Request, table: list[int], full: int) -> None:
        """Register the shareable blocks of an answer, of which `full` of the request are full and known; that
        is not done while it decodes."""
        end = min(full, len(request.block_keys))
        first = end
        while first and not self.pool.is_cached(table[first - 1]):
            first -= 1
        self.pool.remember(_names(request, first, end), table[first:end])

    def _release_named(self, blocks: list[int], full: int) -> None:
        """Release the blocks that may be shared; `full` of them have been computed."""
        pool = self.pool
        planned = blocks[full:]  # but never computed
        pool.forget(planned)
        if self._unhashed_first:
            pool.give_back_first(planned)
        else:
            for block in reversed(planned):
                pool.give_back([block])
        pool.leave(blocks[:full])


def _names(request: Request, first: int, end: int) -> Sequence[Hashable]:
    """Keys of a request's blocks in the pool."""
    return names_in(request.extra_key, request.block_keys[first:end])


def _name(request: Request, index: int) -> Hashable:
    key = request.block_keys[index]
    return key if request.extra_key is None else (request.extra_key, key)
