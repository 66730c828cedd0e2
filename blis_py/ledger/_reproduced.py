"""Whether a saved run, simulated again, gives the same figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_FIGURES = ("cluster", "classes", "tenants")
"""Parts of a summary that must be equal."""
_SHOWN = 3


def differences(saved: Mapping[str, Any], again: Mapping[str, Any]) -> str | None:
    """The differences in a few words; None if everything is equal.

    Args:
        saved, again: summaries, see `blis_py.metrics.summarise`.
    """
    different = [
        f"{path} was {_figure(one)} and is {_figure(other)}"
        for part in _FIGURES
        for path, one, other in _different(saved.get(part), again.get(part), part)
    ]
    if not different:
        return None
    more = f", and {len(different) - _SHOWN:,} more" if len(different) > _SHOWN else ""
    return f"{'; '.join(different[:_SHOWN])}{more}"


def _different(one: Any, other: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {**one, **other}:
            yield from _different(one.get(key), other.get(key), f"{path}.{key}")
    elif one != other:
        yield path, one, other


def _figure(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
