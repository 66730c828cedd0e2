"""Scorers of a weighted router, by the formulas that BLIS publishes for them.

A request is the list of its full prompt blocks, each named by everything up to its end. Nothing is kept but
what a formula needs from the decisions before.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

Blocks = Sequence[Hashable]
REMEMBERED = 10_000
"""Blocks of each instance that `prefix-affinity` knows."""


class Known(NamedTuple):
    """An instance as a router knows it."""

    queue: int
    batch: int
    kv: float
    in_flight: int
    cached: int
    """Leading blocks of the request's prompt in its prefix cache."""

    @property
    def load(self) -> int:
        return self.queue + self.batch + self.in_flight


def lowest_best(values: list[int]) -> list[float]:
    least, most = min(values), max(values)
    return [1.0 if most == least else (most - value) / (most - least) for value in values]


def highest_best(values: list[int]) -> list[float]:
    return lowest_best([-value for value in values])


def by_instance(name: str, known: list[Known]) -> list[float]:
    """Of a scorer that remembers nothing."""
    match name:
        case "queue-depth":
            return lowest_best([one.queue for one in known])
        case "running-requests":
            return lowest_best([one.batch for one in known])
        case "vllm-dp":
            return lowest_best([4 * one.queue + one.batch for one in known])
        case "precise-prefix-cache":
            return highest_best([one.cached for one in known])
        case "kv-utilization":
            return [1 - one.kv for one in known]
        case "load-balance":
            return [1 / (1 + one.load) for one in known]
        case "load-aware":
            return [0.5 if one.queue == 0 else 0.5 * (1 - min(one.queue, 128) / 128) for one in known]
        case "active-requests":
            most = max(one.in_flight for one in known)
            return [1.0 if one.in_flight == 0 else (most - one.in_flight) / most for one in known]
    raise KeyError(name)


class Affinity:
    """Shares of the prompt that each instance was sent before: an LRU list of blocks for each."""

    def __init__(self, count: int) -> None:
        self.sent_to: list[list[Hashable]] = [[] for _ in range(count)]

    def scores(self, blocks: Blocks, known: list[Known]) -> list[float]:
        scores = []
        for index in range(len(known)):
            matched = 0
            while matched < len(blocks) and blocks[matched] in self.sent_to[index]:
                matched += 1
            scores.append(matched / len(blocks) if blocks else 0.0)
        return scores

    def sent(self, blocks: Blocks, index: int, known: list[Known]) -> None:
        here = self.sent_to[index]
        for block in blocks:
            if block in here:
                here.remove(block)
            here.append(block)
        del here[: max(len(here) - REMEMBERED, 0)]


class ColdOrder:
    """Prompts of which no instance holds a block go to the one that had such a prompt least recently."""

    def __init__(self) -> None:
        self.latest: list[int] = []
        """Instances that had one, the most recent last."""

    def scores(self, blocks: Blocks, known: list[Known]) -> list[float]:
        if any(one.cached for one in known):
            return [0.5] * len(known)
        never = [index for index in range(len(known)) if index not in self.latest]
        ranked = never + self.latest
        return [1 - ranked.index(index) / max(len(known) - 1, 1) for index in range(len(known))]

    def sent(self, blocks: Blocks, index: int, known: list[Known]) -> None:
        if not any(one.cached for one in known):
            self.latest = [other for other in self.latest if other != index] + [index]


class NaiveWeighted:
    """The weighted mean of scorers, each held within 0 and 1.

    Args:
        profile: weights by name.
        count: of instances.
    """

    def __init__(self, profile: dict[str, float], count: int) -> None:
        total = sum(profile.values())
        self.weights = {name: weight / total for name, weight in profile.items()}
        self.memories: dict[str, Affinity | ColdOrder] = {}
        if "prefix-affinity" in profile:
            self.memories["prefix-affinity"] = Affinity(count)
        if "no-hit-lru" in profile:
            self.memories["no-hit-lru"] = ColdOrder()

    def scores(self, blocks: Blocks, known: list[Known]) -> list[float]:
        sums = [0.0] * len(known)
        for name, weight in self.weights.items():
            memory = self.memories.get(name)
            parts = memory.scores(blocks, known) if memory else by_instance(name, known)
            sums = [total + weight * min(max(part, 0), 1) for total, part in zip(sums, parts, strict=True)]
        return sums

    def sent(self, blocks: Blocks, index: int, known: list[Known]) -> None:
        for memory in self.memories.values():
            memory.sent(blocks, index, known)


def prompt_blocks(name: str, group: str, shared_tokens: int, tokens: int, size: int = 16) -> list[Hashable]:
    """Full blocks of a prompt whose first tokens are those of its group."""
    blocks: list[Hashable] = []
    for end in range(size, tokens + 1, size):
        blocks.append((group, end) if group and end <= shared_tokens else (name, end))
    return blocks
