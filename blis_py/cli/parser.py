"""One command line: tables of flags, read and explained by argparse.

Parsers are built from the flags that occur among the words, or for help from all that are shown: a run of
`blis` names few of three hundred.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from blis_py.cli.flag import Flag, Flags, Group, spelled
from blis_py.errors import InputError

HELP = ("-h", "--help")
_NEAR = 0.75
"""Similarity from which an unknown flag is taken for a misspelt one."""
_KINDS: dict[Any, str] = {int: "a whole number", float: "a number"}
_METAVARS: dict[Any, str] = {int: "N", float: "X", str: "NAME"}


class _Parser(argparse.ArgumentParser):
    """Raises what is wrong, and abbreviates nothing."""

    def __init__(self, usage: str = "", what: str | None = None) -> None:
        super().__init__(
            usage=_literal(usage),
            description=what and _literal(what),
            formatter_class=_Formatter,
            argument_default=argparse.SUPPRESS,
            add_help=False,
            allow_abbrev=False,
            exit_on_error=False,
        )


class _Formatter(argparse.HelpFormatter):
    """Paragraphs of a description stay apart, and the column of meanings leaves room for both sides."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, prefix or "Usage: ")

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = super()._fill_text
        return "\n\n".join(filled(part, width, indent) for part in text.split("\n\n"))


def parse(words: Sequence[str], groups: Sequence[Group]) -> Flags | None:
    """The flags that were given, in the order of the groups, by the spelling that was used; None = help.

    Raises:
        InputError: an unknown flag, a word too many, a value that is missing or of the wrong kind.
    """
    named = {word.partition("=")[0] for word in words}
    flags = dict(spelled(groups))
    parser = _Parser()
    parser.add_argument(*HELP, action="store_true", dest="help")
    for spelling in named & flags.keys():
        if spelling.startswith("-"):
            _add(parser, flags[spelling], (spelling,), dest=spelling)
    try:
        found, rest = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise _wrong_value(error, words) from None
    given = vars(found)
    if given.pop("help", False):
        return None
    given |= _standing(rest, [flag for name, flag in flags.items() if not name.startswith("-")], flags)
    return {name: _convert(name, flag.kind, given[name]) for name, flag in flags.items() if name in given}


def help_text(name: str, what: str, groups: Sequence[Group]) -> str:
    """The help of a command: what it does, and its flags below their headings."""
    words = [flag for _, flags in groups for flag in flags if not flag.name.startswith("-")]
    places = "".join(f" [{flag.metavar or flag.name}]" for flag in words)
    parser = _Parser(f"{name} [flags]{places}", what)
    for title, flags in groups:
        heading = parser.add_argument_group(title)
        for flag in flags:
            if not flag.hidden:
                _add(heading, flag, (flag.name,))
    parser.add_argument_group("Help").add_argument(*HELP, action="store_true", help="Print this and stop.")
    return parser.format_help()


def program_help(name: str, what: str, verbs: Iterable[tuple[str, str]], flags: Sequence[Flag]) -> str:
    """The help of a command with commands of its own."""
    parser = _Parser(f"{name} [flags] COMMAND …", what)
    heading = parser.add_argument_group("Commands")
    for verb, meaning in verbs:
        heading.add_argument(verb, help=_literal(meaning))
    heading = parser.add_argument_group("Flags")
    for flag in flags:
        _add(heading, flag, (flag.name,))
    heading.add_argument(*HELP, action="store_true", help="Print this and stop; also of a command.")
    return parser.format_help()


def unknown_flag(word: str, known: Collection[str]) -> InputError:
    """What is wrong with a flag that there is not."""
    name = word.partition("=")[0]
    near = get_close_matches(name, known, n=1, cutoff=_NEAR)
    return InputError(f"no such option: {name}", fix=f"did you mean {near[0]}?" if near else None)


def _add(to: Any, flag: Flag, spellings: tuple[str, ...], **more: Any) -> None:
    if flag.kind is bool:
        to.add_argument(*spellings, action="store_true", help=_literal(flag.help), **more)
        return
    several = "+" if flag.many else None
    action = "extend" if flag.many else "append" if flag.kind == list[str] else "store"
    if not flag.name.startswith("-"):
        action, several = "store", None
    metavar = flag.metavar or _METAVARS.get(flag.kind, "TEXT")
    to.add_argument(
        *spellings, action=action, nargs=several, metavar=metavar, help=_literal(flag.help), **more
    )


def _literal(text: str) -> str:
    """Text in which argparse substitutes nothing."""
    return text.replace("%", "%%")


def _wrong_value(error: argparse.ArgumentError, words: Sequence[str]) -> InputError:
    name = error.argument_name
    if not error.message.startswith("expected"):
        return InputError(f"option {name!r} does not take a value")
    after = words[words.index(name) + 1 :] if name in words else ()
    fix = f"a value that begins with a dash is written {name}={after[0]}" if after else None
    return InputError(f"option {name!r} requires an argument", fix=fix)


def _standing(rest: Sequence[str], places: Sequence[Flag], known: Collection[str]) -> Flags:
    """The words that stand by themselves, each in its place; the last place may take several."""
    end = rest.index("--") if "--" in rest else len(rest)
    for word in rest[:end]:
        if word.startswith("-") and word != "-":
            raise unknown_flag(word, [name for name in known if name.startswith("-")])
    words = [*rest[:end], *rest[end + 1 :]]
    found: Flags = {}
    for place in places:
        if words and place.kind == list[str]:
            found[place.name], words = words, []
        elif words:
            found[place.name] = words.pop(0)
    if words:
        raise InputError("does not belong here", value=words[0], fix="flags start with --")
    return found


def _convert(spelling: str, kind: Any, value: Any) -> Any:
    if kind not in _KINDS:
        return value
    try:
        return kind(value)
    except ValueError:
        raise InputError(f"must be {_KINDS[kind]}", key=spelling, value=value) from None
