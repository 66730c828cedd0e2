"""Instances that hold the beginning of a prompt in their prefix caches, as of the latest report.

Caches log what they begin and cease to hold, and a single index follows all of them: from the key of a block,
which implies everything before it, to a bitmask of the instances that hold it. Nothing is copied, and a
lookup costs O(log n) in the length of the prompt for each group of instances with equal coverage.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from blis_py.cluster.instances.dirty_set import DirtySet
from blis_py.core.blocks import CacheChanges, names_in
from blis_py.core.request import Request

if TYPE_CHECKING:
    from blis_py.cluster.instances.fleet import Membership, MemberState

Level = tuple[int, int]
"""Bitmask of instances, and the number of blocks that each of them holds."""


class PrefixReports:
    """The prefix caches of all instances, as of the latest report.

    A report is due when it is read and the previous one is `delay_ns` old; before the first report all caches
    read as empty. 0 = always current.
    """

    def __init__(self, fleet: Membership, delay_ns: int) -> None:
        self.block_size = fleet.cluster.block_size
        self.reported_ns = 0
        """Time of the latest report."""
        self._fleet, self._instances = fleet, fleet.instances
        self._delay_ns = delay_ns
        self._logs: list[CacheChanges] = []
        self._holders: dict[Hashable, int] = {}
        self._noted = DirtySet()
        self._gone: set[int] = set()
        fleet.follow(self._change)

    def _change(self, index: int, state: MemberState) -> None:
        """Add an instance, or remove one with the contents of its cache."""
        if state == "added":
            covered = self._fleet.covers(index)
            self._logs.append(self._instances[index].log_cache() if covered else [])
            self._noted.grow()
        elif state == "gone":
            bit = 1 << index
            self._gone.add(index)
            self._holders = {key: rest for key, held in self._holders.items() if (rest := held & ~bit)}

    def note(self, index: int) -> None:
        """Mark an instance as changed."""
        self._noted.add(index)

    def look(self, now_ns: int) -> None:
        """Update the report, if it is due."""
        if now_ns - self.reported_ns < self._delay_ns:
            return
        self.reported_ns = now_ns
        for index in self._noted.take():
            if index in self._gone:
                continue
            instance = self._instances[index]
            instance.settle_cache(now_ns)
            self._follow(index, self._logs[index])
            if instance.batch_size:
                self._noted.add(index)  # decoding overwrites cached blocks without an event

    def _follow(self, index: int, log: CacheChanges) -> None:
        holders, bit = self._holders, 1 << index
        for begins, keys in log:
            if begins:
                for key in keys:
                    holders[key] = holders.get(key, 0) | bit
                continue
            for key in keys:
                rest = holders.get(key, 0) & ~bit
                if rest:
                    holders[key] = rest
                else:
                    holders.pop(key, None)
        log.clear()

    def held(self, request: Request) -> list[Level]:
        """Instances by number of leading full blocks of a prompt they hold, ascending.

        An instance also belongs to the levels of fewer blocks.
        """
        keys, holders = names_in(request.extra_key, request.block_keys), self._holders
        limit = min(len(keys), request.prompt_tokens // self.block_size)
        levels: list[Level] = []
        blocks = 0
        while blocks < limit and (mask := holders.get(keys[blocks], 0)):
            # A cache evicts no block before those behind it: the holders of later blocks are a subset.
            end = limit
            blocks += 1
            while blocks < end:
                middle = (blocks + end) // 2
                if holders.get(keys[middle], 0) == mask:
                    blocks = middle + 1
                else:
                    end = middle
            levels.append((mask, blocks))
        return levels
