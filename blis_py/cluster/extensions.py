"""Parts by name: those of a table here, and those that installed packages bring along."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from importlib.metadata import entry_points
from typing import TypeVar

T = TypeVar("T")


def find(table: MutableMapping[str, T], group: str, name: str) -> T | None:
    """The part of that name, of the table or else an entry point of the group; `None` if there is none."""
    if name not in table:
        for point in entry_points(group=group, name=name):
            table[name] = point.load()
    return table.get(name)


def names(table: Iterable[str], group: str) -> list[str]:
    """All there are, those of the table first."""
    return [*table, *sorted({point.name for point in entry_points(group=group)} - set(table))]
