"""A radix tree that is evicted in whole leaves, as SGLang's.

Lookups and insertions are the uses of what they pass, and divide nodes where they end.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from blis_py.core.eviction import Worth, lru
from blis_py.core.radix import Match, RadixTree
from blis_py.core.radix_node import Keys, Node


class Private:
    """Key of all blocks of one request that no other finds."""

    __slots__ = ()


class LeafTree(RadixTree):
    """See the module. Whatever is inserted is a node of its own, or several.

    Args:
        worth: eviction strategy, see `eviction.EVICTION_POLICIES`.
    """

    def __init__(self, worth: Callable[[Node], Worth] = lru) -> None:
        super().__init__(worth)
        self._runs_grow = self._releases_use = False

    def find(self, keys: Keys, limit: int, extra_key: Hashable = None) -> Match:
        """The longest cached prefix of `keys[:limit]`, which ends where a node ends; counts as a use."""
        self._clock += 1
        match = self.match(keys, limit, extra_key)
        node = match.node
        if match.inside < len(node.keys):
            node = self._split(node, match.inside)
        self._refresh(node)
        return Match(node, len(node.keys), match.blocks, node.version)

    def use(self, node: Node) -> None:
        """Count an insertion of what ends in a node, and is all present, as a use."""
        self._clock += 1
        self._refresh(node)

    def insert(self, node: Node, keys: Keys, blocks: list[int], priority: int = 0) -> tuple[Node, list[int]]:
        self._clock += 1
        node, present = super().insert(node, keys, blocks, priority)
        self._refresh(node)
        return node, present

    def divide(self, node: Node, blocks: int, at: int) -> None:
        """Divide the path of `blocks` blocks that ends in a node behind the first `at` of them."""
        while (first := blocks - len(node.keys)) > at and node.parent is not None:
            node, blocks = node.parent, first
        if first < at < blocks:
            self._split(node, at - first)

    def evict(self, count: int) -> list[int]:
        """Remove unlocked leaves, the smallest worth first, until that makes `count` blocks or there are no
        more; returns their blocks."""
        evicted: list[int] = []
        while len(evicted) < count and self._evictable:
            node = self._least_worth()
            evicted += reversed(node.blocks)
            if self.log.readers:
                self._note(False, node, node.keys)
            self._evictable -= len(node.blocks)
            self._size -= len(node.blocks)
            self._remove(node)
        return evicted

    def _refresh(self, node: Node) -> None:
        """Count what ends in a node as used now."""
        step: Node | None = node
        while step is not None:
            step.last_use = self._clock
            step = step.parent
        self._revalue(node)

    def _split(self, node: Node, first: int) -> Node:
        node.last_use = self._clock
        self._revalue(node)
        return super()._split(node, first)

    def _revalue(self, node: Node) -> None:
        """Renew the entry of a candidate for eviction, which may be worth less now."""
        if node.parent is not None and not node.locks and not node.children:
            self._now_leaf(node)

    def _note(self, begins: bool, node: Node, keys: Keys) -> None:
        known = keys.index(keys[-1]) if isinstance(keys[-1], Private) else len(keys)
        if known:
            super()._note(begins, node, keys[:known])
