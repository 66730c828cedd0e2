"""The radix tree: the blocks that hold the tokens of shared prefixes.

    match = tree.match(keys, len(keys))   # the longest cached prefix; no side effects
    node = tree.lock(match)               # protects the match from eviction
    node, present = tree.insert(node, keys[match.blocks:], blocks)   # computed since; the lock moves along
    tree.unlock(node)
    blocks = tree.evict(3)                # unlocked blocks, leaves first

It holds block keys and block ids, neither requests nor tokens. A key is anything hashable that names the
content of one block; two blocks are the same when all keys from the root on are *equal*, so keys whose hashes
collide are kept apart.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from operator import ne

from blis_py.core.blocks import CacheLog, names_in
from blis_py.core.eviction import Worth, lru
from blis_py.core.radix_node import Family, Keys, Node

_MIN_ENTRIES = 64
"""Smaller heaps are not compacted."""


@dataclass(frozen=True, slots=True)
class Match:
    """The longest cached prefix of some keys."""

    node: Node
    """The node where it ends."""
    inside: int
    """Number of blocks of that node that belong to it."""
    blocks: int
    """Length in blocks."""
    version: int
    """Version of the node at the time of the match."""


class RadixTree:
    """A radix tree of KV blocks; see the module.

    Args:
        worth: eviction strategy, see `eviction.EVICTION_POLICIES`.
    """

    def __init__(self, worth: Callable[[Node], Worth] = lru) -> None:
        self._worth = worth
        self._roots: dict[Hashable, Node] = {}
        """One per namespace in use."""
        self._evictable = 0
        self._size = 0
        self.shared_uses = 0
        """Locks of blocks beyond the first of each."""
        self._clock = 0
        """Counter of uses: the clock of the strategies."""
        self._leaves: list[tuple[Worth, int, Node]] = []
        """Heap of eviction candidates; some entries are stale."""
        self._entries = 0
        self._tidy_at = _MIN_ENTRIES
        self._runs_grow = True
        """Whether what follows a node without a branch becomes part of it."""
        self._releases_use = True
        """Whether the end of a use counts as the use, not its beginning."""
        self.log = CacheLog()

    def evictable_size(self) -> int:
        """Blocks that are not locked. All of them can be evicted."""
        return self._evictable

    def protected_size(self) -> int:
        """Blocks that are locked."""
        return self._size - self._evictable

    def root(self, extra_key: Hashable = None) -> Node:
        """Root of the prefixes of a namespace: an adapter, a salt."""
        root = self._roots.get(extra_key)
        if root is None:
            root = self._roots[extra_key] = Node([], [], None, Family(extra_key))
        return root

    # -- lookup ----------------------------------------------------------------------------------

    def match(self, keys: Keys, limit: int, extra_key: Hashable = None) -> Match:
        """The longest cached prefix of `keys[:limit]`. A lookup does not count as a use."""
        node = self.root(extra_key)
        inside = matched = 0
        while matched < limit:
            child = node.children.get(keys[matched])
            if child is None:
                break
            node, run = child, child.keys
            end = matched + len(run)
            if end > limit or run != keys[matched:end]:
                inside = _common(run, keys[matched : min(end, limit)])
                return Match(node, inside, matched + inside, node.version)
            matched, inside = end, len(run)
        return Match(node, inside, matched, node.version)

    def holds(self, match: Match, keys: Keys, limit: int) -> bool:
        """Whether matching the same keys again would give the same result.

        True until the tree changes at the end of the match; changes in other branches, or further up, do not
        matter.
        """
        node = match.node
        return node.version == match.version and (
            match.blocks == limit or match.inside < len(node.keys) or keys[match.blocks] not in node.children
        )

    def blocks(self, match: Match) -> list[int]:
        """The blocks of a match that still holds, in order."""
        parts = [match.node.blocks[: match.inside]]
        node = match.node.parent
        while node is not None:
            parts.append(node.blocks)
            node = node.parent
        return [block for part in reversed(parts) for block in part]

    def unlocked(self, match: Match) -> int:
        """Number of blocks of a match that could be evicted."""
        node, count = match.node, match.inside
        if node.locks:
            return 0
        while (parent := node.parent) is not None and not parent.locks:
            node = parent
            count += len(node.blocks)
        return count

    # -- using -----------------------------------------------------------------------------------

    def lock(self, match: Match, priority: int = 0) -> Node:
        """Protect the blocks of a valid match until `unlock`. Counts as a hit.

        Returns:
            The node to continue from; it ends where the match ends.
        """
        node = match.node
        if match.inside < len(node.keys):
            node = self._split(node, match.inside)
        node.family.saved_blocks += match.blocks
        step: Node | None = node
        while step is not None:
            self._lock_one(step)
            step.hits += 1
            if priority < step.priority:
                step.priority = priority
            step = step.parent
        return node

    def insert(self, node: Node, keys: Keys, blocks: list[int], priority: int = 0) -> tuple[Node, list[int]]:
        """Add what has been computed beyond `node`, which the caller has locked; the lock moves along.

        Args:
            keys: of the new blocks, at least one.
            blocks: as many.

        Returns:
            The node to continue from, and the blocks already present: they replace the first ones of
            `blocks`, which the caller keeps and should free.
        """
        present: list[int] = []
        while len(present) < len(keys):
            child = node.children.get(keys[len(present)])
            if child is None:
                node = self._append(node, keys[len(present) :], blocks[len(present) :], priority)
                break
            common = _common(child.keys, keys[len(present) :])
            node = self._split(child, common) if common < len(child.keys) else child
            self._lock_one(node)
            present += node.blocks
        return node, present

    def unlock(self, node: Node) -> None:
        """End a use that began with `lock`."""
        self._clock += 1
        step: Node | None = node
        while step is not None:
            step.locks -= 1
            if step.locks:
                self.shared_uses -= len(step.blocks)
            else:
                if self._releases_use:
                    step.last_use = self._clock
                self._evictable += len(step.blocks)
                if not step.children:
                    self._now_leaf(step)
            step = step.parent

    def evict(self, count: int) -> list[int]:
        """Remove `count` unlocked blocks, the smallest worth first, and return them.

        Several calls evict the same blocks as one. There must be enough of them.
        """
        evicted: list[int] = []
        while len(evicted) < count:
            node = self._least_worth()
            first = max(len(node.blocks) - (count - len(evicted)), 0)
            evicted += reversed(node.blocks[first:])
            if self.log.readers:
                self._note(False, node, node.keys[first:])
            if first:
                del node.blocks[first:], node.keys[first:]
                node.version += 1
            else:
                self._remove(node)
        self._evictable -= count
        self._size -= count
        return evicted

    # -- structure -------------------------------------------------------------------------------

    def _lock_one(self, node: Node) -> None:
        if node.locks:
            self.shared_uses += len(node.blocks)
        else:
            self._evictable -= len(node.blocks)
        node.locks += 1

    def _append(self, node: Node, keys: Keys, blocks: list[int], priority: int) -> Node:
        """Append blocks behind a locked node: in the node itself if only the caller ends there."""
        self._size += len(keys)
        if self.log.readers:
            self._note(True, node, list(keys))
        if self._runs_grow and node.locks == 1 and not node.children and node.parent is not None:
            node.keys += keys
            node.blocks += blocks
            node.version += 1
            return node
        family = node.family if node.parent is not None else Family(node.family.extra_key)
        child = Node(keys, blocks, node, family)
        self._clock += 1
        child.created = child.last_use = self._clock
        child.priority = priority
        child.locks = 1
        node.children[keys[0]] = child
        return child

    def _note(self, begins: bool, node: Node, keys: Keys) -> None:
        """Tell readers of contents in or behind a node."""
        self.log.note(begins, names_in(node.family.extra_key, keys))

    def _split(self, node: Node, first: int) -> Node:
        """Split off the first blocks of a node; users that end in it continue to end in the rest.

        Returns:
            The new node above it, with the same users: all of them pass through.
        """
        upper = Node(node.keys[:first], node.blocks[:first], node.parent, node.family)
        upper.locks, upper.hits, upper.priority = node.locks, node.hits, node.priority
        upper.created, upper.last_use = node.created, node.last_use
        assert node.parent is not None
        node.parent.children[upper.keys[0]] = upper
        del node.keys[:first], node.blocks[:first]
        upper.children[node.keys[0]] = node
        node.parent = upper
        node.version += 1
        return upper

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.keys[0]]
        node.version += 1
        node.entry = -1
        if not parent.children and not parent.locks:
            self._now_leaf(parent)

    def _now_leaf(self, node: Node) -> None:
        """Register an eviction candidate: an unused node that lost its last child, or a leaf that lost its
        last user."""
        if node.parent is None:
            node.version += 1
            del self._roots[node.family.extra_key]
            return
        self._entries += 1
        node.entry = self._entries
        heappush(self._leaves, (self._worth(node), self._entries, node))
        if len(self._leaves) > self._tidy_at:
            self._leaves = [entry for entry in self._leaves if _valid(entry)]
            heapify(self._leaves)
            self._tidy_at = max(2 * len(self._leaves), _MIN_ENTRIES)

    def _least_worth(self) -> Node:
        leaves = self._leaves
        while True:
            worth, entry, node = leaves[0]
            if not _valid(leaves[0]):
                heappop(leaves)
            elif (worth_now := self._worth(node)) != worth:
                heapreplace(leaves, (worth_now, entry, node))
            else:
                return node

    # -- for tests -------------------------------------------------------------------------------

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots, parents first."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def check(self) -> None:
        """Check that the counters agree with the tree.

        Raises:
            AssertionError: they do not.
        """
        size = evictable = 0
        queued = {entry[2] for entry in self._leaves if _valid(entry)}
        for node in self.nodes():
            assert len(node.keys) == len(node.blocks) > 0
            assert node.parent is not None
            assert node.parent.children[node.keys[0]] is node
            assert 0 <= node.locks <= node.parent.locks, "a lock does not reach the root"
            assert sum(child.locks for child in node.children.values()) <= node.locks
            assert (node in queued) == (not node.locks and not node.children), "a leaf is not known as one"
            size += len(node.blocks)
            evictable += 0 if node.locks else len(node.blocks)
        assert (size, evictable) == (self._size, self._evictable)


def _valid(entry: tuple[Worth, int, Node]) -> bool:
    """Whether a leaf's entry is its latest one, and it is still an unused leaf."""
    _, serial, node = entry
    return node.entry == serial and not node.locks and not node.children


def _common(run: Keys, keys: Keys) -> int:
    """Length of the common prefix of two lists."""
    length = min(len(run), len(keys))
    if run[:length] == keys[:length]:
        return length
    return [*map(ne, run, keys)].index(True)
