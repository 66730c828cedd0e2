"""Figures of a run, from its raw record to tables, pictures and files; start with `summarise`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_py.metrics.summary import summarise, totals

if TYPE_CHECKING:
    from blis_py.metrics.frames import (
        requests_frame,
        steps_frame,
        visits_frame,
        write_requests_csv,
        write_steps_csv,
        write_visits_csv,
    )

__all__ = [
    "requests_frame",
    "steps_frame",
    "summarise",
    "totals",
    "visits_frame",
    "write_requests_csv",
    "write_steps_csv",
    "write_visits_csv",
]


def __getattr__(name: str) -> Any:
    """Import tables on demand: most runs print only their summary."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from blis_py.metrics import frames

    return getattr(frames, name)
