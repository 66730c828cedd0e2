"""One command line, read by the tables of flags.

A loop and not argparse: that takes some ten milliseconds to import and set up, a few percent of a small run,
and refuses values that begin with a dash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from blis_py.cli.flags.flag import OF_SERVERS, SERVERS, Flag, Flags, Group, spelled
from blis_py.errors import InputError

HELP = ("-h", "--help")
HELP_ALL = "--help-all"
AXES = "--vary"
"""The flag of axes, to which lists of values of single settings are added."""
_NEAR = 0.75
"""Similarity from which an unknown flag is taken for a misspelt one."""
_SYNONYMS = {"--num-requests": "--num-prompts", "--num-prompts": "--num-requests"}
"""Flags of one meaning, in commands of the simulator and of vLLM's benchmark."""
_NAMES_AND_PLACES = (
    "FILE",
    "DIR",
    "FOLDER",
    "PATH",
    "NAME",
    "STEPLOG",
    "SOURCE",
    "TARGET",
    "URL",
    "KEY",
    "ID",
)
_KINDS: dict[Any, str] = {int: "a whole number", float: "a number"}


def parse(words: Sequence[str], groups: Sequence[Group]) -> Flags | None:
    """The flags that were given, in the order of the groups, by the spelling that was used; None = help.

    Raises:
        InputError: an unknown flag, a word too many, a value that is missing or of the wrong kind.
    """
    flags = dict(spelled(groups))
    takes_servers = any(title == SERVERS for title, _ in groups)
    of_servers: Flags = {}
    given: Flags = {}
    standing: list[str] = []
    left = list(words[::-1])
    while left:
        word = left.pop()
        if word in HELP or word == HELP_ALL:
            return None
        if word == "--":
            standing += left[::-1]
            break
        if word.startswith("-") and word != "-":
            name, equals, value = word.partition("=")
            name = _with_dashes(name, flags)
            extra = _of_servers(name) if takes_servers and name not in flags else None
            flag = extra or _known(name, flags)
            values = [value] if equals else _values(name, flag, left, flags)
            if flag.kind is bool and equals:
                raise InputError(f"option {name!r} does not take a value")
            _check_digits(name, flag, values)
            if extra is not None:
                of_servers[name] = "" if flag.kind is bool else " ".join(values)
                continue
            if flag.spans(values[-1] if values else ""):
                given[AXES] = [*given.get(AXES, ()), f"{flag.name.lstrip('-')}={values[-1]}"]
                continue
            given[name] = _merged(given.get(name, ()), _converted(name, flag.kind, values), flag.kind)
        else:
            standing.append(word)
    given |= _placed(standing, [flag for name, flag in flags.items() if not name.startswith("-")])
    found = {name: given[name] for name in flags if name in given}
    return found | ({OF_SERVERS: list(of_servers.items())} if of_servers else {})


def _of_servers(name: str) -> Flag | None:
    """The flag that only servers have."""
    from blis_py.cli.flags.listed_flags import flag_of  # reads tables, which few command lines need

    return flag_of(name)


def _check_digits(name: str, flag: Flag, values: list[str]) -> None:
    """Refuse digits other than 0 to 9, which Python would read, in values that are not names or places."""
    if flag.metavar in _NAMES_AND_PLACES or flag.kind is bool:
        return
    for value in values:
        if any(letter.isdecimal() and not letter.isascii() for letter in value):
            raise InputError("has other digits than 0 to 9", key=name, value=value, fix="write 0 to 9")


def unknown_flag(word: str, known: Collection[str]) -> InputError:
    """The error of an unknown flag."""
    from difflib import get_close_matches  # few make mistakes

    synonym = _SYNONYMS.get(word)
    near = [synonym] if synonym in known else get_close_matches(word, known, n=1, cutoff=_NEAR)
    return InputError(f"no such option: {word}", fix=f"did you mean {near[0]}?" if near else None)


def _with_dashes(name: str, flags: Mapping[str, Flag]) -> str:
    """A flag as servers accept it, too: `--max_num_tokens`."""
    return name if name in flags else name.replace("_", "-")


def _known(name: str, flags: Mapping[str, Flag]) -> Flag:
    if name not in flags:
        raise unknown_flag(name, [each for each in flags if each.startswith("-")])
    return flags[name]


def _values(name: str, flag: Flag, left: list[str], flags: Mapping[str, Flag]) -> list[str]:
    """Take the values of a flag from the words that are left, the next of which is the last."""
    if flag.kind is bool:
        return []
    if not left or left[-1] in flags:
        fix = f"where {left[-1]} is meant as its value, write {name}={left[-1]}" if left else None
        raise InputError(f"option {name!r} requires an argument", fix=fix)
    values = [left.pop()]
    while flag.many and left and not left[-1].startswith("-"):
        values.append(left.pop())
    return values


def _merged(before: Any, values: list[Any], kind: Any) -> Any:
    """The value of a flag given again: all where it may be repeated, else the last."""
    if kind == list[str]:
        return [*before, *values]
    return True if kind is bool else values[-1]


def _placed(words: list[str], places: Sequence[Flag]) -> Flags:
    """The words that stand by themselves, each in its place; the last place may take several."""
    placed: Flags = {}
    for place in places:
        if words and place.kind == list[str]:
            placed[place.name], words = words, []
        elif words:
            placed[place.name], *words = words
    if words:
        raise InputError("does not belong here", value=words[0], fix="flags start with --")
    return placed


def _converted(name: str, kind: Any, values: list[str]) -> list[Any]:
    if kind not in _KINDS:
        return values
    try:
        if any(not value.isascii() for value in values):
            raise ValueError
        return [kind(value) for value in values]
    except ValueError:
        raise InputError(f"must be {_KINDS[kind]}", key=name, value=values[-1]) from None
