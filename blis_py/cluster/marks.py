"""A set of instances."""

from __future__ import annotations

from collections.abc import Callable


class Marks:
    """Instances by index, cheap to add to and to empty."""

    def __init__(self) -> None:
        self._is_marked: list[bool] = []
        self._marked: list[int] = []
        self._bell: Callable[[], None] | None = None

    def grow(self) -> None:
        """Makes room for one more index."""
        self._is_marked.append(False)

    def ring(self, bell: Callable[[], None]) -> None:
        """From now on it is called when the first one comes into the empty set."""
        self._bell = bell

    def add(self, index: int) -> None:
        """Once or more often is the same."""
        if not self._is_marked[index]:
            self._is_marked[index] = True
            if self._bell is not None and not self._marked:
                self._bell()
            self._marked.append(index)

    def take(self) -> list[int]:
        """Who is in it, in the order in which they came; nobody is any more."""
        marked, self._marked = self._marked, []
        for index in marked:
            self._is_marked[index] = False
        return marked
