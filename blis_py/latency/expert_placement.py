"""Experts on groups of ranks, and the load of the busiest group.

Without copies a group holds consecutive experts. Copies are made and placed as by DeepSeek's EPLB (`eplb.py`,
its global policy): the expert with the largest load a copy gets the next one, and copies go, the heaviest
first, to the least loaded group with room. The copies of an expert share its tokens equally.
"""

from __future__ import annotations

from collections.abc import Sequence


def imbalance(tokens: Sequence[float], groups: int, redundant: int = 0) -> float:
    """Load of the busiest group over the mean of all.

    Where copies would raise it over that of consecutive experts, these stay where they are.

    Args:
        tokens: of each expert.
        redundant: copies beside the experts.
    """
    found = []
    if redundant:
        found.append(max(packed(shared_loads(tokens, redundant), groups)))
    if not len(tokens) % groups:
        found.append(max(consecutive(tokens, groups)))
    return min(found) * groups / sum(tokens)


def consecutive(tokens: Sequence[float], groups: int) -> list[float]:
    """Load of each group."""
    size = len(tokens) // groups
    return [sum(tokens[first : first + size]) for first in range(0, len(tokens), size)]


def shared_loads(tokens: Sequence[float], redundant: int) -> list[float]:
    """Load of every copy of every expert."""
    copies = [1] * len(tokens)
    for _ in range(redundant):
        busiest = max(range(len(tokens)), key=lambda expert: tokens[expert] / copies[expert])
        copies[busiest] += 1
    return [load / count for load, count in zip(tokens, copies, strict=True) for _ in range(count)]


def packed(loads: Sequence[float], groups: int) -> list[float]:
    """Load of each group, of as many copies."""
    room, sums = [len(loads) // groups] * groups, [0.0] * groups
    for load in sorted(loads, reverse=True):
        least = min((group for group in range(groups) if room[group]), key=lambda group: sums[group])
        sums[least] += load
        room[least] -= 1
    return sums
