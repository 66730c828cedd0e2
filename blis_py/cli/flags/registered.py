"""Flags of the settings that are registered as fields of dataclasses."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any, Union, get_args, get_origin

from blis_py.cli.flags.flag import Flag
from blis_py.core.settings import Spelling, extended


def flags_of(settings: type, title: str, prefix: str = "") -> Iterator[tuple[str, Flag]]:
    """The heading and the flag of every setting that has one, in the order of the fields.

    Args:
        title: the heading of those that name no other.
        prefix: of their keys.
    """
    for field in fields(extended(settings)):
        spelling: Spelling | None = field.metadata.get("spelling")
        if spelling is not None:
            for flag in _flags(field, spelling, f"{prefix}{field.name}"):
                yield spelling.group or title, flag


def _flags(field: Field[Any], own: Spelling, key: str) -> Iterator[Flag]:
    kind = kind_of(field.type)
    yield Flag(
        own.flag,
        kind,
        key,
        own.help.replace("`", ""),
        own.aliases,
        own.metavar,
        hidden=not own.help,
        many=kind == list[str],
        null=own.null,
        default=field.default,
        read=own.read,
        scalar=kind in (int, float) or (kind is str and own.read is None and _is_word(field.type)),
    )
    if own.off:
        yield Flag(own.off, bool, key, own.off_help, own.off_aliases, hidden=not own.off_help, off=True)


def _is_word(hint: Any) -> bool:
    """Whether a setting of this type is a text, and not several things that are read from one."""
    union = get_origin(hint) in (types.UnionType, Union)
    return {str} == set(get_args(hint) if union else (hint,)) - {types.NoneType}


def kind_of(hint: Any) -> Any:
    """Type of the flag of a setting of this type: texts that name several things are read later."""
    union = get_origin(hint) in (types.UnionType, Union)
    kinds = [each for each in (get_args(hint) if union else (hint,)) if each is not types.NoneType]
    if len(kinds) == 1 and kinds[0] in (bool, int, float):
        return kinds[0]
    return list[str] if kinds == [tuple[str, ...]] else str
