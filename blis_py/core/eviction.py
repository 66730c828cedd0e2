"""Eviction strategies of the radix cache: the order in which unused leaves are evicted.

A strategy is a function from a node to its worth and one line in `EVICTION_POLICIES`; the leaf with the
smallest worth is evicted first, block by block from its end. The worth of an unused node may only grow.
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
    """Oldest first, regardless of use."""
    return (node.created,)


def mru(node: Node) -> Worth:
    """Most recently used first: suitable for loops over more content than fits."""
    return (-node.last_use,)


def priority(node: Node) -> Worth:
    """Used only by the least urgent requests first (largest number), then the least recently used."""
    return (-node.priority, node.last_use)


def cold_subtree(node: Node) -> Worth:
    """Evict from the family (the subtree of one child of the root) that has saved the fewest blocks first."""
    return (node.family.saved_blocks, node.last_use)


EVICTION_POLICIES: dict[str, Callable[[Node], Worth]] = {
    "lru": lru,
    "lfu": lfu,
    "fifo": fifo,
    "mru": mru,
    "priority": priority,
    "cold-subtree": cold_subtree,
}
