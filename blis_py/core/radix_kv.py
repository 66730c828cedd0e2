"""KV cache over a radix tree (SGLang's design): full blocks belong to the tree once they are computed."""

from __future__ import annotations

from blis_py.core.blocks import BlockPool, CacheChanges, CacheReader, block_count
from blis_py.core.eviction import EVICTION_POLICIES
from blis_py.core.kv import KVCache
from blis_py.core.radix import Match, RadixTree
from blis_py.core.radix_node import Keys
from blis_py.core.request import Request


class RadixPool(BlockPool):
    """A pool whose free blocks are the blank ones and the unlocked ones of the tree.

    Blank ones are taken first; when they run out, the tree evicts.
    """

    def __init__(self, total: int, tree: RadixTree) -> None:
        super().__init__(total)
        self._tree = tree

    @property
    def num_blank(self) -> int:
        return self.num_free - self._tree.evictable_size()

    def take(self, count: int) -> list[int]:
        self.make_room(count)
        return super().take(count)

    def reserve(self, count: int) -> None:
        self.make_room(count)
        super().reserve(count)

    def make_room(self, count: int, besides: int = 0) -> None:
        """Evict so that `count` blocks are blank, and `besides` that are about to be taken."""
        missing = count + besides - self.num_blank
        if missing > 0:
            self._evict(count, missing)

    def _evict(self, count: int, missing: int) -> None:
        self._queue.append(self._tree.evict(missing))

    def forget_free(self) -> None:
        self.make_room(self.num_free)

    def locked(self, count: int) -> None:
        """Mark this many blocks of the tree as no longer evictable."""
        if count:
            self._leave_queue(count)

    def unlocked(self, count: int) -> None:
        """Mark this many blocks of the tree as evictable."""
        if count:
            self._enter_queue(count)

    def replace(self, duplicates: list[int], locked: int) -> None:
        """Take back duplicates of the tree's blocks, of which `locked` were unlocked so far."""
        self._queue.append(duplicates)
        self.unlocked(len(duplicates) - locked)

    def check(self, held: list[int]) -> None:
        blank = self._blank() + [block for chunk in self._queue for block in chunk]
        locks = {block: node.locks for node in self._tree.nodes() for block in node.blocks}
        private = [block for block in held if block not in locks]
        every = blank + private + list(locks)
        assert sorted(every) == list(range(self.total)), "a block is lost, or in two places"
        assert self.num_free == len(blank) + self._tree.evictable_size(), "free blocks are miscounted"
        for block, users in locks.items():
            assert held.count(block) == users, f"block {block} has {held.count(block)} users, {users} counted"
        assert len(held) - len(set(held)) == self.shared_uses, "uses of shared blocks are miscounted"
        self._tree.check()


class RadixKV(KVCache):
    """Block tables over a `RadixTree`.

    A running request locks the node where its published blocks end and continues from there: nothing is
    matched or inserted twice. Its computed blocks are published when a prefill step ends, so requests planned
    for the same step do not share them yet; its answer when it leaves. If the tree has the same content
    already, the request's own block is freed and its table rewritten to the tree's.

    A preempted request finds its named blocks in the tree and its private ones as with every cache.
    """

    def __init__(self, num_blocks: int, block_size: int, eviction_policy: str = "lru") -> None:
        tree = RadixTree(EVICTION_POLICIES[eviction_policy])
        self._begin(tree, RadixPool(num_blocks, tree), block_size)

    def _begin(self, tree: RadixTree, pool: RadixPool, block_size: int) -> None:
        self.tree = tree
        self._pool = pool  # a native attribute has one type
        super().__init__(pool, block_size, prefix_caching=True)

    def follow(self, reader: CacheReader | None = None) -> CacheChanges:
        return self.tree.log.follow(reader)

    def match(self, request: Request) -> int:
        keys = request.block_keys
        if not keys:
            return 0
        if type(keys) is not list:
            request.block_keys = keys = list(keys)
        limit = min((request.num_tokens - 1) // self.block_size, len(keys))
        match: Match | None = request.match
        if match is None or not self.tree.holds(match, keys, limit):
            request.match = match = self.tree.match(keys, limit, request.extra_key)
        return match.blocks

    def cached_blocks(self, request: Request) -> list[int]:
        self.match(request)
        return self.tree.blocks(request.match) if request.match is not None else []

    def blocks_needed(self, request: Request, shared: list[int], own: int, new_tokens: int) -> int:
        return block_count(new_tokens, self.block_size) + own + self._unlocked(request)

    def _unlocked(self, request: Request) -> int:
        """Blocks of its match that could be evicted."""
        match: Match | None = request.match
        return self.tree.unlocked(match) if match is not None else 0

    def admit(
        self,
        request: Request,
        shared: list[int],
        own: int,
        new_tokens: int,
        computed: bool = True,
        ahead: int = 0,
    ) -> bool:
        pool = self._pool
        match: Match | None = request.match
        new_tokens += ahead
        if not self.can_admit(request, shared, own, new_tokens):
            return False
        if match is not None:
            # First of all: taking blocks may evict any unlocked content.
            unlocked = self._unlocked(request)
            request.node = self.tree.lock(match, request.priority)
            request.published = match.blocks
            pool.locked(unlocked)
            pool.shared_uses = self.tree.shared_uses
            request.match = None
        request.block_table += shared
        if own:
            assert request.kept_blocks is not None
            request.block_table += pool.reclaim(request.kept_blocks, own)
        if new_tokens:
            self._allocate(request, block_count(new_tokens, self.block_size))
        return True

    def _allocate(self, request: Request, count: int) -> None:
        """Give a request `count` more blocks."""
        request.block_table += self._pool.take(count)

    def publish_supplied(self, request: Request, first_tokens: int) -> None:
        self.publish(request)

    def publish(self, request: Request) -> None:
        """Hand the full blocks computed so far to the tree; the request continues to use them."""
        keys, node = request.block_keys, request.node
        first = 0 if node is None else request.published
        end = min(request.computed // self.block_size, len(keys))
        if end <= first:
            return
        self._insert(request, first, list(keys[first:end]))

    def _insert(self, request: Request, first: int, new: Keys) -> None:
        """Hand blocks of a request from number `first` on to the tree, with these keys."""
        tree, table, node = self.tree, request.block_table, request.node
        if node is None:  # its first keys were added while it ran
            node = tree.lock(tree.match([], 0, request.extra_key))
        before = tree.evictable_size()
        end = first + len(new)
        request.node, present = tree.insert(node, new, table[first:end], request.priority)
        request.published = end
        self._pool.shared_uses = tree.shared_uses
        if present:
            self._pool.replace(table[first : first + len(present)], before - tree.evictable_size())
            table[first : first + len(present)] = present

    def idle_match(self, request: Request) -> int:
        return self._unlocked(request)

    def discard(self, request: Request) -> None:
        self.settle(request, request.computed)
        self._free(request)

    def release(self, request: Request, keep: bool = False, unknown: int = 0) -> None:
        self.settle(request, request.computed)
        self.publish(request)
        private, published = self._free(request)
        if keep:
            request.kept_blocks = private
            request.kept_full = max(request.computed // self.block_size - published, 0)

    def _free(self, request: Request) -> tuple[list[int], int]:
        """Unlock the published blocks of a request and free its private ones; returns these and the number of
        the others."""
        tree = self.tree
        table, request.block_table = request.block_table, []
        published = 0 if request.node is None else request.published
        private = table[published:]
        self.pool.give_back(private)
        if request.node is not None:
            before = tree.evictable_size()
            tree.unlock(request.node)
            self._pool.unlocked(tree.evictable_size() - before)
            self._pool.shared_uses = tree.shared_uses
            request.node = None
        return private, published
