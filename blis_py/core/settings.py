"""Settings: a field of a dataclass, with all its properties in one place.

The field determines the YAML key (its name), the command-line flags, the help, the documentation, the checks,
and the entry in the resolved configuration. `add` registers one more from outside the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import MISSING, field, make_dataclass
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")


class Spelling(NamedTuple):
    """Spelling of a setting on the command line; an empty string means that it has none."""

    flag: str
    aliases: tuple[str, ...]
    off: str
    """Flag that turns a switch off."""
    off_aliases: tuple[str, ...]
    help: str
    """One or two sentences; without it the flag is hidden from the help. The documentation of a field without
    a docstring."""
    off_help: str
    metavar: str | None
    null: float | None
    """The value that means null on the command line: 0 for automatic, -1 for never."""
    group: str
    """Heading in the help, if it is not that of the section."""
    read: Callable[[str, Any], Any] | None
    """The value of the setting from flag and text (or number), where they differ."""


def setting(
    default: Any = MISSING,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    choices: Iterable[str] | str | None = None,
    factory: Any = MISSING,
    flag: str = "",
    aliases: tuple[str, ...] = (),
    off: str = "",
    off_aliases: tuple[str, ...] = (),
    help: str = "",
    off_help: str = "",
    metavar: str | None = None,
    null: float | None = None,
    group: str = "",
    read: Callable[[str, Any], Any] | None = None,
) -> Any:
    """A dataclass field with bounds (`least` <= value <= `most`, `above` < value), choices, and flags.

    Args:
        choices: the allowed words, or the name of their table in `core.checks.CHOICES`.
    """
    metadata: dict[str, Any] = {"least": least, "above": above, "most": most, "choices": choices}
    if flag:
        metadata["spelling"] = Spelling(
            flag, aliases, off, off_aliases, help, off_help, metavar, null, group, read
        )
    return field(default=default, default_factory=factory, metadata=metadata)


ADDED: dict[type, list[tuple[str, Any, Any]]] = {}
"""Name, type and field of settings from outside the package, by settings class."""
_extended: dict[tuple[type, int], type] = {}


def add(settings: type, name: str, kind: Any, spec: Any) -> None:
    """Register a setting of a settings class (`SchedulerSettings`) and of all classes that derive from it.

    Call it before the command line is imported: the tables of flags are built then.
    """
    ADDED.setdefault(settings, []).append((name, kind, spec))


def extended(settings: type[T]) -> type[T]:
    """The class with the settings that were added to it or to its bases."""
    if not ADDED:
        return settings
    own = [each for base in settings.__mro__ for each in ADDED.get(base, ())]
    key = settings, len(own)
    if own and key not in _extended:
        specs = [(name, kind, copy(spec)) for name, kind, spec in own]
        _extended[key] = make_dataclass(
            settings.__name__, specs, bases=(settings,), kw_only=True, init=False, repr=False, eq=False
        )
    return cast(type[T], _extended.get(key, settings))
