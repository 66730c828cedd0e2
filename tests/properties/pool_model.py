"""A block pool made of plain lists: what the real one is compared with."""

from __future__ import annotations

from collections.abc import Hashable


class ListPool:
    """Free blocks in the order of their reuse. Released private blocks lie there last one first."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.free: list[int] = []
        self.never_used = total
        """Free blocks before those in `free`; which ids they have does not matter."""
        self.key_of: dict[int, Hashable] = {}
        self.users: dict[int, int] = {}
        self.use_of_ticks: list[int] = []
        """Blocks in use during each past tick."""

    @property
    def num_free(self) -> int:
        return self.never_used + len(self.free)

    @property
    def in_use(self) -> int:
        return self.total - self.num_free

    def take(self, blocks: list[int]) -> None:
        """Checks that these are the next ones, in any order among those of one release."""
        fresh = min(self.never_used, len(blocks))
        self.never_used -= fresh
        old = self.free[: len(blocks) - fresh]
        assert len(set(blocks)) == len(blocks)
        assert set(old) <= set(blocks)
        assert not set(self.free[len(old) :]) & set(blocks)
        del self.free[: len(old)]
        for block in old:
            self.forget(block)

    def give_back(self, chunk: list[int]) -> None:
        self.free += reversed(chunk)

    def forget(self, block: int) -> None:
        self.key_of.pop(block, None)
        self.users.pop(block, None)

    def holders(self, key: Hashable) -> list[int]:
        return [block for block, held in self.key_of.items() if held == key]
