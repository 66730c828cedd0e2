"""Settings: a field of a dataclass, with everything that is said of it in one place.

From the field follow the YAML key (its name), the flags of the command lines, the help, the documentation,
the checks, and what the resolved configuration holds. `add` registers one more from outside of the package.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import MISSING, field, make_dataclass
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")


class Spelling(NamedTuple):
    """How a setting is given on a command line; the empty string: it is not."""

    flag: str
    aliases: tuple[str, ...]
    off: str
    """Of a switch: the flag that turns it off."""
    off_aliases: tuple[str, ...]
    help: str
    """One sentence or two; without it the flag is hidden from the help."""
    off_help: str
    metavar: str | None
    null: float | None
    """The value that means null there: 0 for automatic, -1 for never."""
    group: str
    """The heading of the help, where it is not that of the section."""


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
) -> Any:
    """A dataclass field with bounds (`least` <= value <= `most`, `above` < value), choices, and flags.

    Args:
        choices: the words that there are, or the name of their table in `core.checks.CHOICES`.
    """
    metadata: dict[str, Any] = {"least": least, "above": above, "most": most, "choices": choices}
    if flag:
        metadata["spelling"] = Spelling(flag, aliases, off, off_aliases, help, off_help, metavar, null, group)
    return field(default=default, default_factory=factory, metadata=metadata)


ADDED: dict[type, list[tuple[str, Any, Any]]] = {}
"""Name, type and field of settings from outside of the package, by the class of settings they belong to."""
_extended: dict[tuple[type, int], type] = {}


def add(settings: type, name: str, kind: Any, spec: Any) -> None:
    """Registers a setting of a class of settings (`SchedulerSettings`) and of all that derive from it.

    To be done before the command line is read: the tables of flags are made when they are imported.
    """
    ADDED.setdefault(settings, []).append((name, kind, spec))


def extended(settings: type[T]) -> type[T]:
    """The class with the settings that have been added to it or to what it derives from."""
    if not ADDED:
        return settings
    own = [each for base in settings.__mro__ for each in ADDED.get(base, ())]
    key = settings, len(own)
    if own and key not in _extended:
        specs = [(name, kind, copy(spec)) for name, kind, spec in own]
        _extended[key] = make_dataclass(
            settings.__name__, specs, bases=(settings,), frozen=True, kw_only=True
        )
    return cast(type[T], _extended.get(key, settings))
