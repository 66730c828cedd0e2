"""Words of a server's command line as flags with their values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from blis_py.errors import InputError
from blis_py.files.yaml_files import parse_yaml
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
    """A flag as the table has it, underscores as dashes and one of a pair of spellings; that of a part, as
    `-cc.level`, by the spelling of the whole."""
    begin, dot, rest = name.partition(".")
    if begin.startswith("--"):
        begin = begin.replace("_", "-")
    return table.names.get(begin + dot, table.names.get(begin, begin)) + dot + rest


def with_parts(pairs: Iterable[tuple[str, str]], table: FlagTable) -> Iterator[tuple[str, str]]:
    """Flags with the parts of a mapping (`--name.part value`, `--name.part+ item`) as one text of JSON."""
    parts: dict[str, dict[str, Any]] = {}
    for name, text in pairs:
        head, dot, rest = name.partition(".")
        if not dot or not rest or table.meaning("flags", head) is None:
            yield name, text
            continue
        *above, leaf = rest.split(".")
        inner = parts.setdefault(head, {})
        for each in above:
            below = inner.setdefault(each, {})
            inner = below if isinstance(below, dict) else {}
        value = _value(text)
        if leaf.endswith("+"):
            before = inner.get(leaf[:-1])
            inner[leaf[:-1]] = [*(before if isinstance(before, list) else ()), value]
        else:
            inner[leaf] = value
    for head, found in parts.items():
        yield head, json.dumps(found, default=str)


def _value(text: str) -> Any:
    if not text:
        return True
    try:
        return parse_yaml(text)
    except InputError:
        return text
