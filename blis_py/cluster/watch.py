"""Somebody who looks on while instances work, for questions that the recorder's columns do not answer."""

from __future__ import annotations

from typing import Any, Protocol


class Watch(Protocol):
    """Sees every step of every instance. It may look at anything and change nothing."""

    def beside(self, index: int, scheduler: Any, events: Any) -> Any:
        """Who is told what instance `index` does, in place of `events`; it tells these in turn.

        Args:
            scheduler: of the instance, a `Lifecycle`.
            events: a `StepEvents`, or those of the kind of requests; so is what is returned.
        """
        ...
