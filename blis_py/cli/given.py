"""Flags as they are nearly always given: known ones, each with its value.

Such a command line is read here. Typer is asked where somebody wants help, and where something is wrong:
importing it takes longer than a small simulation.
"""

from __future__ import annotations

from collections.abc import Sequence

from blis_py.cli.flag import Flags, Group


def given(arguments: Sequence[str], groups: Sequence[Group]) -> Flags | None:
    """What was given, in the order of the groups, by the spelling that was used.

    `None` where there is anything else: help, a word that stands by itself, an unknown flag, a value that is
    missing or of the wrong kind.
    """
    kinds = {
        spelling: flag.kind
        for _, flags in groups
        for flag in flags
        for spelling in (flag.name, *flag.aliases)
        if spelling.startswith("-")
    }
    found: Flags = {}
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        kind = kinds.get(name)
        if kind is bool and not equals:
            found[name] = True
            continue
        text = value if equals else next(words, None)
        if kind in (None, bool) or text is None:
            return None
        try:
            found[name] = [*found.get(name, ()), text] if kind == list[str] else kind(text)
        except ValueError:
            return None
    return {name: found[name] for name in kinds if name in found}
