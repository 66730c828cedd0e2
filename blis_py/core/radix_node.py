"""Nodes of the radix tree."""

from __future__ import annotations

from collections.abc import Hashable

Keys = list[Hashable]


class Family:
    """The subtree below one child of a root: the users of one system prompt, one document, one dialogue."""

    __slots__ = ("extra_key", "saved_blocks")

    def __init__(self, extra_key: Hashable) -> None:
        self.extra_key = extra_key
        """Namespace of the tree."""
        self.saved_blocks = 0
        """Blocks that matches have found in it so far."""


class Node:
    """A run of blocks without a branch. A root has none."""

    __slots__ = (
        "blocks",
        "children",
        "created",
        "entry",
        "family",
        "hits",
        "keys",
        "last_use",
        "locks",
        "parent",
        "priority",
        "version",
    )

    def __init__(self, keys: Keys, blocks: list[int], parent: Node | None, family: Family) -> None:
        self.keys = keys
        self.blocks = blocks
        self.parent = parent
        self.family = family
        self.children: dict[Hashable, Node] = {}
        """Children by the first key of each."""
        self.locks = 0
        """Users of this node or of one below it."""
        self.version = 0
        """Changes whenever a match that ended in this node may be stale; see `RadixTree.holds`."""
        self.hits = 0
        """Matches locked in it or below."""
        self.created = self.last_use = 0
        self.priority = 1 << 30
        """Priority of its most urgent user so far: smaller is more urgent."""
        self.entry = -1
        """Serial number of its valid entry among the eviction candidates."""
