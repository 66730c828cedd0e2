"""Eviction strategies of the radix cache: which leaf nobody uses is given up first.

A strategy is a function from a node to its worth and one line in `EVICTION_POLICIES`; the leaf with the
smallest worth goes first, block by block from its end. While nobody uses a node its worth may only grow.
"""

from __future__ import annotations

from collections.abc import Callable

from blis_py.core.radix_node import Node

Worth = tuple[int, ...]


def lru(node: Node) -> Worth:
    """Least recently used first."""
    return (node.last_use,)


def lfu(node: Node) -> Worth:
    """Fewest hits first, among equals the least recently used."""
    return (node.hits, node.last_use)


def fifo(node: Node) -> Worth:
    """Oldest first, however often it is used."""
    return (node.created,)


def mru(node: Node) -> Worth:
    """Most recently used first: good for loops over more than fits."""
    return (-node.last_use,)


def priority(node: Node) -> Worth:
    """What only less urgent requests have used first (their largest number), then the least recently used."""
    return (-node.priority, node.last_use)


def cold_subtree(node: Node) -> Worth:
    """From the family (everything below one child of the root) that has saved the fewest blocks."""
    return (node.family.saved_blocks, node.last_use)


EVICTION_POLICIES: dict[str, Callable[[Node], Worth]] = {
    "lru": lru,
    "lfu": lfu,
    "fifo": fifo,
    "mru": mru,
    "priority": priority,
    "cold-subtree": cold_subtree,
}
