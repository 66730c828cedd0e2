"""Words of a server's command line as flags with their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from blis_py.launch.flag_table import FlagMeaning, FlagTable

_NUMBER = re.compile(r"-\d")


def flags_of(words: Sequence[str], table: FlagTable) -> Iterator[tuple[str, str]]:
    """Flags with their texts in order, the empty text for a switch; words alone have an empty flag.

    Of flags that the table does not list, the next word is the value unless it begins with a dash.
    """
    left = list(words[::-1])
    while left:
        word = left.pop()
        if not word.startswith("-") or word == "-" or _NUMBER.match(word):
            yield "", word
            continue
        if word == "--":
            continue
        name, equals, text = word.partition("=")
        name = spelled(name, table)
        if equals:
            yield name, text
            continue
        meaning = table.meaning("flags", name) or FlagMeaning()
        if meaning.switch or not left or not _is_value(left[-1]):
            yield name, ""
            continue
        values = [left.pop()]
        while meaning.many and left and _is_value(left[-1]):
            values.append(left.pop())
        yield name, " ".join(values)


def _is_value(word: str) -> bool:
    return not word.startswith("-") or word == "-" or bool(_NUMBER.match(word))


def spelled(name: str, table: FlagTable) -> str:
    """A flag as the table has it, underscores as dashes and one of a pair of spellings."""
    if not name.startswith("--"):
        return table.names.get(name, name)
    begin, dot, rest = name.partition(".")
    dashed = begin.replace("_", "-") + dot + rest
    return table.names.get(dashed, dashed)
