"""Upper bounds on a prefix cache's hit rate for a workload.

- `unlimited`: a cache without eviction. No cache, no order of the requests and no routing finds more.
- `clairvoyant`: a cache of limited size that foresees all requests and always evicts the block whose next use
  is furthest away (Belady's MIN), with the requests served one by one in order of arrival. No eviction policy
  finds more in that order; a scheduler that reorders the queue can.

Both count as the schedulers do: full blocks from the beginning of a prompt, and at least one token of every
prompt computed.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from blis_py.errors import InputError
from blis_py.requests.table import Content, Ints, RequestTable

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Reuse:
    """Prompt tokens looked up in a prefix cache, and those found there."""

    queried_tokens: int
    hit_tokens: int

    @property
    def hit_rate(self) -> float | None:
        """Found / looked up; None without lookups."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else None


def unlimited(table: RequestTable, block_size: int) -> Reuse:
    """Hits without eviction, if every request finds all blocks that another one computes.

    Requests are taken in the order of their prompts' lengths, so that those that compute a block in any case,
    because their prompt ends there, come before those that can find it; any other block is computed by the
    first request that needs it, which is unavoidable. So no order finds more.
    """
    kinds, kind_of_row = _kinds(table, block_size)
    counts = np.bincount(kind_of_row, minlength=len(kinds)).tolist()
    tree = _Tree(block_size)
    longest: dict[int, int] = {}
    """Node -> end of the blocks that any request has computed."""
    hits = 0
    for (content, findable), count in sorted(zip(kinds, counts, strict=True), key=lambda kind: kind[0][1]):
        for node, first, end in tree.spans(table.contents[content]):
            known = longest.get(node, first)
            hits += max(min(known, end, findable) - first, 0)
            longest[node] = max(known, end)
        hits += (count - 1) * findable
    return Reuse(int(table.prompt_tokens.sum()), hits * block_size)


def clairvoyant(table: RequestTable, block_size: int, num_blocks: int) -> Reuse:
    """Hits of Belady's MIN with `num_blocks` blocks, requests one after the other in order of arrival.

    Every request is finished, its answer included, before the next begins, and takes no space outside the
    cache. It is optimistic if requests run concurrently and their blocks compete with the cache.

    Raises:
        InputError: a negative number of blocks.
    """
    if num_blocks < 0:
        raise InputError("must not be negative", key="num_blocks", value=num_blocks)
    kinds, kind_of_row = _kinds(table, block_size)
    paths = _Pieces(table, kinds, block_size)
    order = kind_of_row.tolist()
    hits = _min(paths, order, _next_uses(paths, order), num_blocks)
    return Reuse(int(table.prompt_tokens.sum()), hits * block_size)


def _min(paths: _Pieces, order: list[int], next_uses: list[list[int]], num_blocks: int) -> int:
    """Number of blocks found. Pieces are evicted block by block, from their end."""
    kept: dict[int, int] = {}
    """Piece -> its cached blocks."""
    due: dict[int, int] = {}
    """Piece -> its next use."""
    furthest: list[tuple[int, int]] = []
    """Heap of (-next use, piece), some stale. Pieces with the same next use are worth the same: whatever is
    evicted, all of them are cached again after it."""
    used = hits = 0
    for at, kind in enumerate(order):
        findable, rest = paths.of_kind(kind)
        hits += sum(kept.get(piece, 0) for piece in findable)
        for piece, next_use in zip(findable + rest, next_uses[at], strict=True):
            blocks = paths.blocks[piece] if next_use < _NEVER else 0
            used += blocks - kept.get(piece, 0)
            kept[piece], due[piece] = blocks, next_use
            if blocks:
                heapq.heappush(furthest, (-next_use, piece))
        while used > num_blocks:
            next_use, piece = furthest[0]
            dropped = min(kept[piece], used - num_blocks) if due[piece] == -next_use else 0
            kept[piece] -= dropped
            used -= dropped
            if dropped == 0 or kept[piece] == 0:
                heapq.heappop(furthest)
    return hits


def _next_uses(paths: _Pieces, order: list[int]) -> list[list[int]]:
    """For each request and each of its pieces, the request that finds the piece next if it is still
    cached.

    A request that computes the piece anyway (its prompt ends there) restores it, so keeping it until then
    gains nothing.
    """
    coming: dict[int, int] = {}
    uses = []
    for at in range(len(order) - 1, -1, -1):
        findable, rest = paths.of_kind(order[at])
        uses.append([coming.get(piece, _NEVER) for piece in findable + rest])
        coming.update(dict.fromkeys(findable, at))
        coming.update(dict.fromkeys(rest, _NEVER))
    return uses[::-1]


def _kinds(table: RequestTable, block_size: int) -> tuple[list[tuple[int, int]], Ints]:
    """The distinct (content, blocks that can be found), and each row's; rows without content are left out."""
    rows = np.flatnonzero(table.content >= 0)
    content = table.content[rows]
    named = np.array(
        [sum(tokens for _, tokens in runs) // block_size for runs in table.contents], dtype=np.int64
    )
    findable = np.minimum((table.prompt_tokens[rows] - 1) // block_size, named[content])
    base = int(findable.max(initial=0)) + 1
    distinct, kind_of_row = np.unique(content * base + findable, return_inverse=True)
    return [divmod(number, base) for number in distinct.tolist()], kind_of_row.reshape(-1)


class _Pieces:
    """The blocks of all requests, cut where requests diverge: every request has a piece whole or not at
    all.

    `blocks` holds the size of each piece. It makes the bounds cost one operation per run of content and not
    one per block.
    """

    def __init__(self, table: RequestTable, kinds: list[tuple[int, int]], block_size: int) -> None:
        tree = _Tree(block_size)
        self.blocks: list[int] = []
        self._spans = [tree.spans(table.contents[content]) for content, _ in kinds]
        cuts: dict[int, set[int]] = defaultdict(set)
        for spans, (_, findable) in zip(self._spans, kinds, strict=True):
            for node, first, end in spans:
                cuts[node] |= {first, end, min(max(findable, first), end)}
        self._kinds = kinds
        self._cuts = {node: sorted(places) for node, places in cuts.items()}
        self._first: dict[int, int] = {}
        """Node -> number of its first piece."""
        for node, places in self._cuts.items():
            self._first[node] = len(self.blocks)
            self.blocks += [end - begin for begin, end in pairwise(places)]
        self._known: dict[int, tuple[list[int], list[int]]] = {}

    def of_kind(self, kind: int) -> tuple[list[int], list[int]]:
        """The pieces a request can find, in order, and the later ones that it computes in any case."""
        if kind not in self._known:
            self._known[kind] = self._split(kind)
        return self._known[kind]

    def _split(self, kind: int) -> tuple[list[int], list[int]]:
        findable: list[int] = []
        rest: list[int] = []
        limit = self._kinds[kind][1]
        for node, _, end in self._spans[kind]:
            cuts, number = self._cuts[node], self._first[node]
            for at in range(len(cuts) - 1):
                if cuts[at + 1] > end:
                    break
                (findable if cuts[at + 1] <= limit else rest).append(number + at)
        return findable, rest


class _Tree:
    """Numbers for the distinct paths of content runs, as `KeySpace` gives them to block keys."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._nodes: dict[tuple[int, int, str | int], int] = {}

    def spans(self, runs: Content) -> list[tuple[int, int, int]]:
        """(node, first block, end block) of each run; a block belongs to the run it ends in."""
        node = begin = 0
        spans = []
        for segment, tokens in runs:
            if tokens == 0:
                continue
            node = self._nodes.setdefault((node, begin, segment), len(self._nodes) + 1)
            end = begin + tokens
            if begin // self._block_size < end // self._block_size:
                spans.append((node, begin // self._block_size, end // self._block_size))
            begin = end
        return spans
