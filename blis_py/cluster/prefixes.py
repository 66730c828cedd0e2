"""Which instance holds the beginning of a prompt in its prefix cache, as far as others know.

Caches tell what they begin and cease to hold, and one index of all of them follows: from the key of a block,
which names everything before it too, to the instances that hold it, as the bits of a number. Nothing is
copied, and a question costs the logarithm of the prompt for each group of instances that hold equally much
of it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from blis_py.cluster.marks import Marks
from blis_py.core.blocks import CacheChanges, names_in
from blis_py.core.request import Request

if TYPE_CHECKING:
    from blis_py.cluster.fleet import Membership, MemberState

Level = tuple[int, int]
"""Instances, as bits, and the blocks that each of them holds."""


class PrefixReports:
    """The prefix caches of all instances, as they were at the latest report.

    A report is due when somebody looks and the one before is `delay_ns` old; before the first one nobody
    holds anything. 0 = they are seen as they are.
    """

    def __init__(self, fleet: Membership, delay_ns: int) -> None:
        self.block_size = fleet.cluster.block_size
        self.reported_ns = 0
        """When the latest report was made."""
        self._fleet, self._instances = fleet, fleet.instances
        self._delay_ns = delay_ns
        self._logs: list[CacheChanges] = []
        self._holders: dict[Hashable, int] = {}
        self._noted = Marks()
        self._gone: set[int] = set()
        fleet.follow(self._change)

    def _change(self, index: int, state: MemberState) -> None:
        """An instance is added, or gone with what its cache holds."""
        if state == "added":
            covered = self._fleet.covers(index)
            self._logs.append(self._instances[index].log_cache() if covered else [])
            self._noted.grow()
        elif state == "gone":
            bit = 1 << index
            self._gone.add(index)
            self._holders = {key: rest for key, held in self._holders.items() if (rest := held & ~bit)}

    def note(self, index: int) -> None:
        """Something has happened at an instance."""
        self._noted.add(index)

    def look(self, now_ns: int) -> None:
        """A report, if it is due."""
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
                self._noted.add(index)  # what it decodes overwrites blocks, and says nothing

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
        """Who holds how many leading full blocks of a prompt, from the fewest to the most blocks.

        Whoever holds more stands in the levels of fewer as well.
        """
        keys, holders = names_in(request.extra_key, request.block_keys), self._holders
        limit = min(len(keys), request.prompt_tokens // self.block_size)
        levels: list[Level] = []
        blocks = 0
        while blocks < limit and (mask := holders.get(keys[blocks], 0)):
            # A cache gives no block up before those behind it: ever fewer hold the next ones.
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
