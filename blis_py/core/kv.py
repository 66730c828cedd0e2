"""KV cache of one instance: which blocks a request holds, and which prefixes can be shared."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence

from blis_py.core.blocks import BlockPool, CacheChanges
from blis_py.core.request import Request


class KeySpace:
    """Content keys for prompts described as (segment, tokens) runs.

    The key of a block names the whole prompt up to the block's end, as a chained hash would, but
    without collisions: every distinct path of runs gets a number, and the key is that number with
    the block's index. An engine that has real tokens chains real hashes instead.
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
    """Block tables, with a prefix cache over full blocks (vLLM's design).

    Full blocks of a prompt that others may ask for are registered under their content key as soon
    as the step that computes them is planned, so a request planned later in the same step shares
    them already; those of an answer when the request leaves. A released block stays findable until it
    is reused. Blocks without a key hold a request's private tokens; only the same request, after a
    preemption, can find them again.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool) -> None:
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.prefix_caching = prefix_caching

    def cached_blocks(self, request: Request) -> list[int]:
        """Blocks of the longest cached prefix, in order; the last token is never included."""
        if not self.prefix_caching:
            return []
        self.pool.name_reserved()
        limit = (request.num_tokens - 1) // self.block_size
        return self.pool.find(_names(request, 0, limit))

    def follow(self) -> CacheChanges:
        """From now on, the list to which is appended what can be found from then on, and no more."""
        changes: CacheChanges = []
        self.pool.changes = changes
        return changes

    def matched_blocks(self, request: Request) -> int:
        """Length of the longest cached prefix of a waiting request. Remembered: cheap to ask again.

        A block is never forgotten before those behind it, so the prefix ends where one is known and the
        next is not.
        """
        if not self.prefix_caching:
            return 0
        self.pool.name_reserved()
        limit = min((request.num_tokens - 1) // self.block_size, len(request.block_keys))
        blocks = min(request.match or 0, limit)

        def unknown(index: int) -> bool:
            return not self.pool.knows(_name(request, index))

        if (blocks and unknown(blocks - 1)) or (blocks < limit and not unknown(blocks)):
            request.match = blocks = bisect_left(range(limit), True, key=unknown)
        return blocks

    def own_blocks(self, request: Request, shared: int) -> int:
        """How many of its own blocks a preempted request can still continue a full match with."""
        kept = request.kept_blocks
        if kept is None or shared != min(
            len(request.block_keys), (request.num_tokens - 1) // self.block_size
        ):
            return 0
        self.pool.name_reserved()
        return min(len(kept), request.kept_full, (request.num_tokens - 1) // self.block_size - shared)

    def admit(self, request: Request, shared: list[int], own: int, new_tokens: int) -> bool:
        """Gives a waiting request its cached blocks and room for `new_tokens` more. All or nothing."""
        pool = self.pool
        fresh = -(-new_tokens // self.block_size)  # cached blocks are full
        from_free = own + pool.count_free(shared) if shared or own else 0
        if fresh + from_free > pool.num_free:
            return False
        if from_free or shared:
            self._reuse(request, shared, own)
            request.block_table += pool.take(fresh)
        else:
            request.block_table = pool.take(fresh)
        if request.block_keys and self.prefix_caching:
            cached = len(shared) + own
            self._register(request, cached, cached + new_tokens // self.block_size)
        return True

    def _reuse(self, request: Request, shared: list[int], own: int) -> None:
        self.pool.use(shared)
        request.block_table += shared
        if own:
            assert request.kept_blocks is not None
            request.block_table += self.pool.reclaim(request.kept_blocks, own)

    def shortfall(self, request: Request, tokens: int) -> int:
        """Blocks that `tokens` more of an unfinished prefill need beyond those it has."""
        return -(-(request.computed + tokens) // self.block_size) - len(request.block_table)

    def extend(self, request: Request, tokens: int) -> bool:
        """Makes room for `tokens` more of an unfinished prefill, or returns False and does nothing."""
        fresh = self.shortfall(request, tokens)
        if fresh > self.pool.num_free:
            return False
        if fresh:
            request.block_table += self.pool.take(fresh)
        if request.block_keys and self.prefix_caching:
            first = request.computed // self.block_size
            self._register(request, first, (request.computed + tokens) // self.block_size)
        return True

    def _register(self, request: Request, first: int, end: int) -> None:
        names = _names(request, first, end)
        self.pool.remember(names, request.block_table[first : first + len(names)])

    def settle(self, request: Request, computed: int, in_step: int = 0) -> None:
        """Completes the block table of a request that has decoded up to `computed` tokens.

        Its blocks have been reserved, each when it was needed.

        Args:
            in_step: 1 if the token it computes in the planned step shall have its block, too.
        """
        table, size = request.block_table, self.block_size
        held = len(table)
        missing = -(-(computed + in_step) // size) - held
        if missing > 0:
            first_tick = held * size - computed + self.pool.tick
            request.block_table += self.pool.redeem(missing, first_tick, size)

    def release(self, request: Request, keep: bool = False) -> None:
        """Frees all blocks of a request, last one first. Its `computed` is exact.

        Args:
            keep: remember the private blocks, so that the request may find them again.
        """
        self.settle(request, request.computed)
        table, request.block_table = request.block_table, []
        named: list[int] = []
        if request.block_keys and self.prefix_caching:
            if len(request.block_keys) * self.block_size > request.prompt_tokens:
                self._register_answer(request, table)
            named = table[: len(request.block_keys)]
            table = table[len(named) :]
        self.pool.give_back(table)
        if named:
            self._release_named(named, request.computed // self.block_size)
        if keep and self.prefix_caching:
            request.kept_blocks = table
            request.kept_full = max(request.computed // self.block_size - len(named), 0)

    def forget_unused(self) -> None:
        """Nothing that no request holds can be found again: some of it may never have been computed."""
        self.pool.forget_free()

    def _register_answer(self, request: Request, table: list[int]) -> None:
        """Names the full blocks of an answer that others may ask for; nobody did while it decoded."""
        end = min(request.computed // self.block_size, len(request.block_keys))
        first = end
        while first and not self.pool.is_cached(table[first - 1]):
            first -= 1
        self.pool.remember(_names(request, first, end), table[first:end])

    def _release_named(self, blocks: list[int], full: int) -> None:
        """The blocks that may be shared; `full` of them have been computed."""
        pool = self.pool
        planned = blocks[full:]  # but they will not be computed
        pool.forget(planned)
        for block in reversed(planned):
            pool.give_back([block])
        pool.leave(blocks[:full])


def _names(request: Request, first: int, end: int) -> Sequence[Hashable]:
    """What the blocks of a request are called in the pool: namespaces share nothing."""
    keys = request.block_keys[first:end]
    return keys if request.extra_key is None else [(request.extra_key, key) for key in keys]


def _name(request: Request, index: int) -> Hashable:
    key = request.block_keys[index]
    return key if request.extra_key is None else (request.extra_key, key)
