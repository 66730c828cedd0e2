"""The router's own index of prompts sent to each instance."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING

from blis_py.cluster.routing.prefixes import Level
from blis_py.core.blocks import names_in
from blis_py.core.request import Request

if TYPE_CHECKING:
    from blis_py.cluster.instances.fleet import MemberState


class AffinityIndex:
    """LRU index of the prompt blocks sent to each instance.

    Blocks that no other prompt can share are only counted: they displace others.

    Args:
        capacity: blocks of each instance.
    """

    def __init__(self, block_size: int, capacity_blocks: int) -> None:
        self._block_size, self._capacity_blocks = block_size, capacity_blocks
        self._members = 0
        self._holders: dict[Hashable, int] = {}
        """Bitmask of the instances that hold each block."""
        self._recent: list[OrderedDict[Hashable, int]] = []
        """Blocks under each key: one, or all unshareable blocks of a prompt."""
        self._size: list[int] = []
        self._private = 0

    def change(self, index: int, state: MemberState) -> None:
        """Add an instance, or drop one that takes no more requests."""
        if state == "added":
            self._recent.append(OrderedDict())
            self._size.append(0)
            self._members |= 1 << index
        elif state == "draining":
            bit = 1 << index
            self._members &= ~bit
            self._recent[index].clear()
            self._size[index] = 0
            self._holders = {key: rest for key, held in self._holders.items() if (rest := held & ~bit)}

    def held(self, request: Request) -> list[Level]:
        """Instances that hold leading full blocks of a prompt, by number of blocks, fewest first."""
        keys, holders = names_in(request.extra_key, request.block_keys), self._holders
        levels: list[Level] = []
        mask, limit = self._members, min(len(keys), request.prompt_tokens // self._block_size)
        for blocks in range(limit):
            holding = mask & holders.get(keys[blocks], 0)
            if holding != mask:
                if blocks:
                    levels.append((mask, blocks))
                mask = holding
                if not mask:
                    return levels
        if limit:
            levels.append((mask, limit))
        return levels

    def sent(self, request: Request, index: int) -> None:
        """Record that a request is sent to an instance."""
        blocks = request.prompt_tokens // self._block_size
        recent, holders, bit = self._recent[index], self._holders, 1 << index
        shared = names_in(request.extra_key, request.block_keys[:blocks])
        for key in shared:
            if key in recent:
                recent.move_to_end(key)
            else:
                recent[key] = 1
                holders[key] = holders.get(key, 0) | bit
                self._size[index] += 1
        if blocks > len(shared):
            self._private += 1
            recent[("private", self._private)] = blocks - len(shared)
            self._size[index] += blocks - len(shared)
        while self._size[index] > self._capacity_blocks:
            self._forget_oldest(index)

    def _forget_oldest(self, index: int) -> None:
        recent, holders = self._recent[index], self._holders
        key, blocks = recent.popitem(last=False)
        excess = self._size[index] - self._capacity_blocks
        if blocks > excess:
            recent[key] = blocks - excess
            recent.move_to_end(key, last=False)
            blocks = excess
        elif key in holders:
            rest = holders[key] & ~(1 << index)
            if rest:
                holders[key] = rest
            else:
                del holders[key]
        self._size[index] -= blocks
