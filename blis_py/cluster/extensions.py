"""Components by name: built-in tables and entry points of installed packages."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from importlib.metadata import entry_points
from typing import TypeVar

from blis_py.errors import InputError

T = TypeVar("T")


def find(table: MutableMapping[str, T], group: str, name: str) -> T | None:
    """The component of that name, from the table or else the entry point group; `None` if there is none."""
    if name not in table:
        for point in entry_points(group=group, name=name):
            table[name] = point.load()
    return table.get(name)


def named(table: MutableMapping[str, T], group: str, name: str, what: str, *, key: str = "") -> T:
    """The component of that name.

    Args:
        what: kind of component, for the error message.
        key: the setting that names it; empty = same as `what`.

    Raises:
        InputError: neither the table nor an installed package has it.
    """
    component = find(table, group, name)
    if component is None:
        fix = f"use one of {', '.join(names(table, group))}"
        raise InputError(f"unknown {what}", key=key or what.replace(" ", "_"), value=name, fix=fix)
    return component


def names(table: Iterable[str], group: str) -> list[str]:
    """All names, those of the table first."""
    return [*table, *sorted({point.name for point in entry_points(group=group)} - set(table))]
