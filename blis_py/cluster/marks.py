"""A set of instances."""

from __future__ import annotations


class Marks:
    """Instances by index, cheap to add to and to empty."""

    def __init__(self, count: int) -> None:
        self._is_marked = [False] * count
        self._marked: list[int] = []

    def add(self, index: int) -> None:
        """Once or more often is the same."""
        if not self._is_marked[index]:
            self._is_marked[index] = True
            self._marked.append(index)

    def take(self) -> list[int]:
        """Who is in it, in the order in which they came; nobody is any more."""
        marked, self._marked = self._marked, []
        for index in marked:
            self._is_marked[index] = False
        return marked
