"""The KV cache of one instance: the blocks held by each request, and the prefixes that can be shared.

A cache is a subclass of `KVCache` and one line in `caches.PREFIX_CACHES`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from blis_py.core.blocks import BlockPool, CacheChanges, CacheReader, block_count
from blis_py.core.decoding import DecodeSet
from blis_py.core.radix_node import Node
from blis_py.core.request import Request


class KeySpace:
    """Content keys for prompts described as (segment, tokens) runs.

    The key of a block identifies the whole prompt up to the block's end, as a chained hash would, but without
    collisions: every distinct path of runs gets a number, and the key is that number with the block's index.
    An engine with real tokens chains real hashes instead.
    """

    _INDEX_BITS = 24

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._nodes: dict[tuple[int, int, Hashable], int] = {}

    def keys(self, runs: Iterable[tuple[Hashable, int]]) -> list[int]:
        """Keys of the full blocks covered by `runs`, in order."""
        size, keys = self._block_size, list[int]()
        node, begin = 0, 0
        for segment, tokens in runs:
            if tokens == 0:
                continue
            node = self._nodes.setdefault((node, begin, segment), len(self._nodes) + 1)
            end = begin + tokens
            first = node << self._INDEX_BITS
            # A block belongs to the run that holds its last token.
            keys += range(first + begin // size, first + end // size)
            begin = end
        return keys


class KVCache:
    """Block tables over a pool of blocks, and a prefix cache over full blocks.

    A request goes through `match`, `admit`, any number of `extend`, `publish` and `settle`, and `release`.
    Lengths are in blocks where a name says so and in tokens otherwise. Methods that need blocks return False
    and change nothing if too few are free; nothing here raises.

    Blocks without a content key hold a request's private tokens; only the same request, after a preemption,
    can find them again.
    """

    def __init__(self, pool: BlockPool, block_size: int, prefix_caching: bool) -> None:
        self.pool = pool
        self.block_size = block_size
        """Tokens per block."""
        self.prefix_caching = prefix_caching
        """Whether released content can be found again."""
        self.evicts_ahead = False
        """Whether `foresee_decodes` has an effect."""
        self.grouped = False
        """Whether several groups of layers share the pool: blocks of decoding requests are then taken and
        freed as each step is planned (`plan_step`), not reserved."""
        self.per_crossing = 1
        """Blocks that a request needs when it begins another block's tokens."""
        self.resolved = 0
        """Steps whose outcome is known."""

    # -- supplied by the subclass -----------------------------------------------------------------

    def match(self, request: Request) -> int:
        """Length in blocks of the longest cached prefix of a waiting request; never all of its tokens.

        Cached on the request, so repeated calls are cheap. Changes nothing.
        """
        raise NotImplementedError

    def cached_blocks(self, request: Request) -> list[int]:
        """The blocks of that prefix, in order."""
        raise NotImplementedError

    def blocks_needed(self, request: Request, shared: list[int], own: int, new_tokens: int) -> int:
        """Free blocks that `admit` takes: new ones, and cached ones that no request uses."""
        raise NotImplementedError

    def admit(
        self,
        request: Request,
        shared: list[int],
        own: int,
        new_tokens: int,
        computed: bool = True,
        ahead: int = 0,
    ) -> bool:
        """Give a waiting request its cached blocks and allocate `new_tokens` more.

        Args:
            shared: its `cached_blocks`.
            own: its `own_blocks` behind them.
            ahead: slots behind the new tokens.
            computed: the step being planned computes the new tokens; otherwise they are being loaded, and
                other requests find them after `publish_supplied`.
        """
        raise NotImplementedError

    def publish(self, request: Request) -> None:
        """Make the full blocks computed by a step available to other requests."""
        raise NotImplementedError

    def publish_supplied(self, request: Request, first_tokens: int) -> None:
        """Make the full blocks loaded from a KV source available to others: from `first_tokens` to
        `computed`."""
        raise NotImplementedError

    def publish_prompt(self, request: Request) -> None:
        """The same once the outcome of the step that completed a prompt is known, of what had been computed
        then (`Request.filled`)."""
        self.publish(request)

    def release(self, request: Request, keep: bool = False, unknown: int = 0) -> None:
        """Free all blocks of a request, last one first. Its `computed` is exact.

        Args:
            keep: remember the private blocks, so that the request may find them again.
            unknown: computed tokens at the end that the engine does not know yet; blocks with them cannot be
                found.
        """
        raise NotImplementedError

    def discard(self, request: Request) -> None:
        """Free all blocks of a request that will be computed again; none of them is published now."""
        self.release(request)

    def idle_match(self, request: Request) -> int:
        """Blocks of the cached prefix of a waiting request, as last matched, that no request uses."""
        return self.pool.count_free(self.cached_blocks(request)) if request.block_keys else 0

    def follow(self, reader: CacheReader | None = None) -> CacheChanges:
        """A new log of contents that the cache begins and ceases to hold from now on; the reader empties
        it.

        Args:
            reader: None = one of this cache alone.
        """
        raise NotImplementedError

    def allocate(self, prefills: Sequence[tuple[Request, int]]) -> None:
        """Give those that a pass has chosen, with their tokens, the blocks that they were promised."""

    def check_decodes(self, blocks: int) -> None:
        """Note that decodes that need so many blocks are about to be planned."""

    def launch_decodes(self, decodes: int, tick: int) -> None:
        """Note that so many requests decode in a step."""

    def foresee_decodes(self, decoding: DecodeSet, tick: int, steps: int) -> None:
        """The same of identical steps from `tick` on; of each step once."""

    def touch(self, request: Request) -> None:
        """Count the cached prefix of a waiting request as used."""

    def look_up(self, request: Request) -> tuple[Node, int]:
        """End of a waiting request's cached prefix, its last token included, in the tree, and the blocks of
        that prefix; counts as a use."""
        raise NotImplementedError

    def _register(self, request: Request, first: int, end: int) -> None:
        """Register the full blocks `first` to `end` of a request, which the step being planned computes."""

    # -- common to all ----------------------------------------------------------------------------

    def can_admit(
        self, request: Request, shared: list[int], own: int, new_tokens: int, besides: int = 0
    ) -> bool:
        """Whether `admit` finds its blocks, and so many `besides` remain free."""
        return self.blocks_needed(request, shared, own, new_tokens) + besides <= self.pool.num_free

    def fits_whole(
        self, request: Request, shared: list[int], own: int, new_tokens: int, besides: int
    ) -> bool:
        """Whether `admit` finds its blocks, and those of all tokens of the request are free with so many
        `besides`."""
        missing = request.num_tokens - (len(shared) + own) * self.block_size
        return self.can_admit(request, shared, own, max(new_tokens, missing), besides)

    def held_blocks(self, request: Request) -> list[int]:
        """Blocks that a running request holds."""
        return request.block_table

    def holds_enough(self, request: Request) -> bool:
        """Whether these are as many as its computed tokens need, and no more unless it has had drafts."""
        expected, holds = self.blocks_of(request.computed), len(request.block_table)
        return holds == expected or (request.bursts is not None and holds > expected)

    def blocks_of(self, tokens: int) -> int:
        """Number of blocks that this many tokens fill or begin."""
        return block_count(tokens, self.block_size)

    def own_blocks(self, request: Request, shared: int) -> int:
        """Number of its own blocks with which a preempted request can still extend a full match."""
        kept = request.kept_blocks
        if kept is None or shared != min(
            len(request.block_keys), (request.num_tokens - 1) // self.block_size
        ):
            return 0
        self.pool.name_reserved()
        return min(len(kept), request.kept_full, (request.num_tokens - 1) // self.block_size - shared)

    def shortfall(self, request: Request, tokens: int) -> int:
        """Blocks that `tokens` more of a running request need beyond those it has; 0 or less if none."""
        return block_count(request.computed + tokens, self.block_size) - len(request.block_table)

    def extend(self, request: Request, tokens: int, ahead: int = 0) -> bool:
        """Allocate `tokens` more for a running request, which the step being planned computes.

        Args:
            ahead: slots behind them.
        """
        fresh = self.shortfall(request, tokens + ahead)
        if fresh > self.pool.num_free:
            return False
        if fresh > 0:
            request.block_table += self.pool.take(fresh)
        if request.block_keys and self.prefix_caching and (request.bursts is None or not request.bursting):
            first = request.computed // self.block_size
            self._register(request, first, (request.computed + tokens) // self.block_size)
        return True

    def plan_step(
        self, decoding: DecodeSet, tick: int, chunks: Sequence[tuple[Request, int, int]], in_flight: bool
    ) -> None:
        """With `grouped`: take and free the blocks of all decodes and these chunks of prompts in step `tick`,
        in running order. Enough blocks are free.

        Args:
            chunks: requests with their tokens and slots behind them, as for `extend`.
            in_flight: whether the outcome of the step before is not known.
        """

    def boundary(self, request: Request) -> int:
        """With `grouped`: end in tokens of a prefix that only some groups have cached, of a request that was
        just looked up or runs; 0 = there is none."""
        return 0

    def extend_decode(self, request: Request, computed: int, in_flight: bool) -> bool:
        """With `grouped`: `extend` for the next token of a request that decodes."""
        return True

    def growth(self, decoding: DecodeSet, tick: int) -> int:
        """With `grouped`: blocks that decodes will have taken in step `tick` beyond those they have, less
        freed ones."""
        return 0

    def settle(self, request: Request, computed: int, in_step: int = 0) -> None:
        """Complete the block table of a request that has decoded up to `computed` tokens.

        Its blocks have been reserved, each when it was needed.

        Args:
            in_step: 1 to include the block of the token computed in the planned step.
        """
        size, held = self.block_size, len(request.block_table)
        missing = block_count(computed + in_step, size) - held
        if missing > 0:
            first_tick = held * size - computed + self.pool.tick
            request.block_table += self.pool.redeem(missing, first_tick, size)

    def forget_unused(self) -> None:
        """Drop cached content that no request holds, since some of it may never have been computed."""
        self.pool.forget_free()
