"""KV cache over a tree that is evicted in whole leaves (SGLang's `RadixCache` and `UnifiedRadixCache`)."""

from __future__ import annotations

from collections.abc import Sequence

from blis_py.core.blocks import block_count
from blis_py.core.decoding import DecodeSet
from blis_py.core.eviction import EVICTION_POLICIES
from blis_py.core.leaf_tree import LeafTree, Private
from blis_py.core.radix import Match
from blis_py.core.radix_kv import RadixKV, RadixPool
from blis_py.core.radix_node import Keys, Node
from blis_py.core.request import Request


class LeafPool(RadixPool):
    """A pool whose tree is evicted in leaves.

    Args:
        to_fit: evict until there is room; otherwise, if there is too little, as much as room is needed for.
    """

    def __init__(self, total: int, tree: LeafTree, to_fit: bool) -> None:
        super().__init__(total, tree)
        self._to_fit = to_fit

    def _evict(self, count: int, missing: int) -> None:
        blocks = self._tree.evict(missing if self._to_fit else count)
        if blocks:
            self._queue.append(blocks)

    def promise(self, count: int) -> None:
        """Count blocks as taken that `take_promised` will take."""
        self.num_free -= count

    def take_promised(self, count: int) -> list[int]:
        """Take blocks that were promised."""
        self.num_free += count
        return self.take(count)


class LeafKV(RadixKV):
    """Block tables over a `LeafTree`, which holds all that was computed: a request finds even its own answer.

    Blocks of a pass are allocated, and others evicted for them, once all its requests have been chosen. Room
    is made for a block more than each of them may need, and for a block for each decode, where blocks have
    several tokens. Requests that are retracted add nothing to the tree.

    Args:
        to_fit: see `LeafPool`.
        answers_apart: divide the tree between prompts and answers.
        keeps_answers: hand the answer of a request that ends to the tree, too.
        defers: whether passes end with `allocate`.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        eviction_policy: str = "lru",
        to_fit: bool = True,
        answers_apart: bool = False,
        keeps_answers: bool = True,
        defers: bool = False,
    ) -> None:
        self._leaves = LeafTree(EVICTION_POLICIES[eviction_policy])
        self._blanks = LeafPool(num_blocks, self._leaves, to_fit)
        self._begin(self._leaves, self._blanks, block_size)
        self._answers_apart = answers_apart
        self._keeps_answers = keeps_answers
        self._defers = defers
        self._promised: list[tuple[Request, int]] = []
        self._foreseen = 0
        """Steps of decodes for which room has been made."""
        self.evicts_ahead = True

    # -- lookups ---------------------------------------------------------------------------------------

    def match(self, request: Request) -> int:
        limit = self._limit((request.num_tokens - 1) // self.block_size, request)
        keys = self._keys(request, 0, limit)
        match: Match | None = request.match
        if match is None or not self._leaves.holds(match, keys, limit):
            request.match = match = self._leaves.match(keys, limit, request.extra_key)
        return match.blocks

    def cached_blocks(self, request: Request) -> list[int]:
        """Counts as a use."""
        limit = self._limit((request.num_tokens - 1) // self.block_size, request)
        match = self._leaves.find(self._keys(request, 0, limit), limit, request.extra_key)
        request.match = match
        return self._leaves.blocks(match)

    def touch(self, request: Request) -> None:
        self.look_up(request)

    def look_up(self, request: Request) -> tuple[Node, int]:
        limit = self._limit(request.num_tokens // self.block_size, request)
        match = self._leaves.find(self._keys(request, 0, limit), limit, request.extra_key)
        return match.node, match.blocks

    def _limit(self, blocks: int, request: Request) -> int:
        """Blocks of those that may be found."""
        return blocks if request.private is not None else min(blocks, len(request.block_keys))

    def _keys(self, request: Request, first: int, end: int) -> Keys:
        keys: Keys = list(request.block_keys[first:end])
        unknown = end - first - len(keys)
        if unknown:
            if request.private is None:
                request.private = Private()
            keys += [request.private] * unknown
        return keys

    # -- allocation ------------------------------------------------------------------------------------

    def extend(self, request: Request, tokens: int, ahead: int = 0) -> bool:
        fresh = self.shortfall(request, tokens + ahead)
        if fresh > self._blanks.num_free:
            return False
        if fresh > 0:
            self._allocate(request, fresh)
        return True

    def _allocate(self, request: Request, count: int) -> None:
        if self._defers:
            self._blanks.promise(count)
            self._promised.append((request, count))
        else:
            super()._allocate(request, count)

    def allocate(self, prefills: Sequence[tuple[Request, int]]) -> None:
        if not self._promised:
            return
        pool, promised = self._blanks, self._promised
        total = sum(count for _, count in promised)
        tokens = sum(count for _, count in prefills)
        pool.num_free += total
        more = len(prefills) if self.block_size > 1 else 0
        pool.make_room(block_count(tokens, self.block_size) + more)
        for request, count in promised:
            request.block_table += pool.take(count)
        promised.clear()

    def _redeem_promises(self) -> None:
        for request, count in self._promised:
            request.block_table += self._blanks.take_promised(count)
        self._promised.clear()

    # -- decodes ---------------------------------------------------------------------------------------

    def check_decodes(self, blocks: int) -> None:
        self._blanks.make_room(blocks)

    def launch_decodes(self, decodes: int, tick: int) -> None:
        self._foreseen = tick + 1
        if self.block_size > 1:
            self._blanks.make_room(decodes)

    def foresee_decodes(self, decoding: DecodeSet, tick: int, steps: int) -> None:
        first, end = max(tick, self._foreseen), tick + steps
        decodes, pool = decoding.count, self._blanks
        if first >= end or not decodes:
            return
        self._foreseen = end
        if pool.num_blank - decoding.blocks_for(first, end - first) >= decodes:
            return
        size, crossings, taken = self.block_size, decoding.crossings, 0
        for step in range(first, end):
            blocks = crossings[step % size]
            pool.make_room(blocks, taken)
            if size > 1:
                pool.make_room(decodes, taken)
            taken += blocks

    # -- what the tree learns --------------------------------------------------------------------------

    def publish(self, request: Request) -> None:
        self._publish(request, request.computed)

    def publish_prompt(self, request: Request) -> None:
        self._publish(request, request.filled[1])

    def _publish(self, request: Request, tokens: int) -> None:
        """Hand the full blocks of the first `tokens` of a request to the tree."""
        if self._promised:
            self._redeem_promises()
        tree, end = self._leaves, tokens // self.block_size
        first = 0 if request.node is None else request.published
        if end > first:
            self._insert(request, first, self._keys(request, first, end))
        elif request.node is not None:
            tree.use(request.node)
        prompt_blocks = request.prompt_tokens // self.block_size
        if self._answers_apart and 0 < prompt_blocks < end and request.node is not None:
            tree.divide(request.node, request.published, prompt_blocks)

    def release(self, request: Request, keep: bool = False, unknown: int = 0) -> None:
        if keep:
            self.discard(request)
            return
        self.settle(request, request.computed)
        tokens = min(request.computed, request.num_tokens) - unknown
        if not self._keeps_answers:
            tokens = min(tokens, max(request.filled[1], request.prompt_tokens))
        self._publish(request, tokens)
        self._free(request)

    def discard(self, request: Request) -> None:
        if self._promised:
            self._redeem_promises()
        super().discard(request)
