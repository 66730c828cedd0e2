"""A set of instances."""

from __future__ import annotations

from collections.abc import Callable


class DirtySet:
    """A set of instance indices with cheap insertion and clearing."""

    def __init__(self) -> None:
        self._is_marked: list[bool] = []
        self._marked: list[int] = []
        self._bell: Callable[[], None] | None = None

    def grow(self) -> None:
        """Extend the range by one index."""
        self._is_marked.append(False)

    def ring(self, bell: Callable[[], None]) -> None:
        """Set a callback for the insertion of the first element into the empty set."""
        self._bell = bell

    def add(self, index: int) -> None:
        """Add an index; idempotent."""
        if not self._is_marked[index]:
            self._is_marked[index] = True
            if self._bell is not None and not self._marked:
                self._bell()
            self._marked.append(index)

    def take(self) -> list[int]:
        """Remove and return all elements, in the order of insertion."""
        marked, self._marked = self._marked, []
        for index in marked:
            self._is_marked[index] = False
        return marked


class SeveralDirtySets(DirtySet):
    """Add every index to several sets."""

    def __init__(self, sets: list[DirtySet]) -> None:
        super().__init__()
        self.sets = sets

    def add(self, index: int) -> None:
        for one in self.sets:
            one.add(index)
