"""Observers of a running simulation, for questions beyond the recorder's columns."""

from __future__ import annotations

from typing import Any, Protocol


class Observer(Protocol):
    """Observer of every step of every instance; read-only."""

    def beside(self, index: int, scheduler: Any, events: Any) -> Any:
        """The event receiver of instance `index`, in place of `events`, to which it forwards every event.

        Args:
            scheduler: of the instance, a `Lifecycle`.
            events: a `StepEvents`, or those of the kind of requests; so is what is returned.
        """
        ...
