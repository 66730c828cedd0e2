"""The help of commands, laid out by argparse from the tables of flags."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import MISSING
from functools import cache
from typing import Any

from blis_py.cli.flags.flag import Flag, Group
from blis_py.cli.flags.parser import HELP, HELP_ALL
from blis_py.errors import InputError

USUAL_FLAGS = (
    *("--model", "--model-config", "--gpu", "--tp", "--num-instances", "--engine", "--launch"),
    *("--workload", "--workload-spec", "--trace", "--rate", "--concurrency", "--num-requests"),
    *("--prompt-tokens", "--output-tokens", "--slo", "--ttft", "--tpot", "--e2e", "--scheduler"),
    *("--max-num-batched-tokens", "--max-num-seqs", "--config", "--set"),
    *("--vary", "--metric", "--instances", "--gpus", "--max-rate", "--pareto", "--at-least", "--fix"),
    *("--price", "--budget", "--quick", "--out", "--format"),
)
"""Flags that the help of a command with many begins with, in this order."""
_MANY = 80
_METAVARS: dict[Any, str] = {int: "N", float: "X", str: "NAME"}


class _Formatter(argparse.HelpFormatter):
    """Paragraphs of a description stay apart, and words whole."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, prefix or "Usage: ")

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = super()._fill_text
        return "\n\n".join(filled(part, width, indent) for part in text.split("\n\n"))


def help_for(name: str, what: str, groups: Sequence[Group], words: Sequence[str]) -> str:
    """The help for a command line: of a command with many flags the usual ones; with the first word of a
    heading (`-h scheduler`) those below it; all with `--help-all`.

    Raises:
        InputError: no such heading.
    """
    shown = [(title, own) for title, flags in groups if (own := tuple(f for f in flags if not f.hidden))]
    if HELP_ALL in words or sum(len(flags) for _, flags in shown) <= _MANY:
        return help_text(name, what, groups)
    at = next(number for number, word in enumerate(words) if word in HELP)
    wanted = words[at + 1].lower() if len(words) > at + 1 and not words[at + 1].startswith("-") else ""
    if wanted:
        found = [group for group in shown if wanted in group[0].lower()]
        if not found:
            fix = f"there are {', '.join(_first_words(shown))}"
            raise InputError("no such group of flags", key="-h", value=wanted, fix=fix)
        return help_text(name, what, found)
    by_name = {flag.name: flag for _, flags in shown for flag in flags}
    first = tuple(by_name[each] for each in USUAL_FLAGS if each in by_name)
    further = [f"{word} ({len(flags)})" for word, (_, flags) in zip(_first_words(shown), shown, strict=True)]
    lines = textwrap.wrap(f"Further flags with -h and one of: {', '.join(further)}; all with {HELP_ALL}.", 78)
    return "\n".join([help_text(name, what, [("Usual flags", first)]), *lines, ""])


def _first_words(groups: Sequence[Group]) -> list[str]:
    return [title.split()[0].lower() for title, _ in groups]


def help_text(name: str, what: str, groups: Sequence[Group]) -> str:
    """The help of a command: what it does, and its flags below their headings."""
    words = [flag for _, flags in groups for flag in flags if not flag.name.startswith("-")]
    places = "".join(f" [{flag.metavar or flag.name}]" for flag in words)
    parser = _parser(f"{name} [flags]{places}", what)
    for title, flags in groups:
        _add(parser.add_argument_group(title), [flag for flag in flags if not flag.hidden])
    parser.add_argument_group("Help").add_argument(*HELP, action="store_true", help="Print this and stop.")
    return parser.format_help()


def program_help(name: str, what: str, verbs: Iterable[tuple[str, str]], flags: Sequence[Flag]) -> str:
    """The help of a command with commands of its own."""
    parser = _parser(f"{name} [flags] COMMAND …", what)
    heading = parser.add_argument_group("Commands")
    for verb, meaning in verbs:
        heading.add_argument(verb, help=_literal(meaning))
    heading = parser.add_argument_group("Flags")
    _add(heading, flags)
    heading.add_argument(*HELP, action="store_true", help="Print this and stop; also of a command.")
    return parser.format_help()


def _parser(usage: str, what: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        usage=_literal(usage), description=_literal(what), formatter_class=_Formatter, add_help=False
    )


def _add(to: Any, flags: Iterable[Flag]) -> None:
    for flag in flags:
        if flag.kind is bool:
            to.add_argument(flag.name, action="store_true", help=_literal(meaning(flag)))
        else:
            metavar = flag.metavar or _METAVARS.get(flag.kind, "TEXT")
            several = "+" if flag.many else None
            to.add_argument(flag.name, metavar=metavar, nargs=several, help=_literal(meaning(flag)))


def meaning(flag: Flag) -> str:
    """Meaning of a flag, and its default: that of the preset, or else its own."""
    usual, engine = _usual() if flag.key else ({}, "")
    preset = flag.key in usual
    default = usual.get(flag.key, flag.default)
    if default is MISSING or (not default and default != 0) or "efault" in flag.help or flag.off:
        return flag.help
    if default is False or (default == 0 and not flag.help):
        return flag.help
    shown = "on" if default is True else _words(default)
    return f"{flag.help} Default {shown}{f' ({engine})' if preset else ''}."


def _words(default: Any) -> str:
    if isinstance(default, list | tuple):
        return ",".join(f"{each:g}" for each in default)
    return str(default).removesuffix(".0")


@cache
def _usual() -> tuple[dict[str, Any], str]:
    """The settings of the default engine preset, and its name."""
    from blis_py.config.engine import usual_settings
    from blis_py.config.models import DEFAULT_ENGINE

    return usual_settings(), DEFAULT_ENGINE


def _literal(text: str) -> str:
    """Text in which argparse substitutes nothing."""
    return text.replace("%", "%%")
