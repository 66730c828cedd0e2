"""Parts by name: those of a table here, and those that installed packages bring along."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from importlib.metadata import entry_points
from typing import TypeVar

from blis_py.errors import InputError

T = TypeVar("T")


def find(table: MutableMapping[str, T], group: str, name: str) -> T | None:
    """The part of that name, of the table or else an entry point of the group; `None` if there is none."""
    if name not in table:
        for point in entry_points(group=group, name=name):
            table[name] = point.load()
    return table.get(name)


def named(table: MutableMapping[str, T], group: str, name: str, what: str, *, key: str = "") -> T:
    """The part of that name.

    Args:
        what: it is, for the complaint.
        key: the setting that names it; empty = called like `what`.

    Raises:
        InputError: there is none, nor an installed package that brings one.
    """
    found = find(table, group, name)
    if found is None:
        fix = f"use one of {', '.join(names(table, group))}"
        raise InputError(f"unknown {what}", key=key or what.replace(" ", "_"), value=name, fix=fix)
    return found


def names(table: Iterable[str], group: str) -> list[str]:
    """All there are, those of the table first."""
    return [*table, *sorted({point.name for point in entry_points(group=group)} - set(table))]
