"""Dispatch of a command line to its verb."""

from __future__ import annotations

from collections.abc import Sequence

from blis_py.cli.flags.flag import spelled
from blis_py.cli.flags.parser import HELP, parse, unknown_flag
from blis_py.cli.program import Command, Program, command_of
from blis_py.errors import InputError


def dispatch(program: Program, arguments: Sequence[str]) -> int:
    """Runs one command line of a program; returns the exit code.

    Raises:
        InputError: there is no such command or flag, or a value is wrong.
    """
    name, *words = arguments or HELP
    if name in HELP:
        from blis_py.cli.flags.help import program_help

        verbs = ((verb, entry.what) for verb, entry in program.verbs.items())
        print(program_help(program.name, program.what, verbs, program.flags), end="")
        return 0
    if name == "help":
        return dispatch(program, [*words, HELP[-1]])
    if name not in program.verbs:
        raise _unknown(name, program)
    command = command_of(name, program.verbs[name])
    if isinstance(command, Program):
        return dispatch(command, words)
    return run(f"{program.name} {name}", command, words)


def run(name: str, command: Command, words: Sequence[str]) -> int:
    """One verb with its flags, or its help."""
    flags = parse(words, command.groups)
    if flags is None:
        from inspect import getdoc

        from blis_py.cli.flags.help import help_for

        print(help_for(name, getdoc(command.run) or "", command.groups, words), end="")
        return 0
    return command.run(flags) or 0


def _unknown(name: str, program: Program) -> InputError:
    if name.startswith("-"):
        return unknown_flag(name, [spelling for spelling, _ in spelled([("", program.flags)])])
    from difflib import get_close_matches

    near = get_close_matches(name, program.verbs, n=1)
    fix = f"did you mean {near[0]}?" if near else there_are(program)
    return InputError(f"no such command {name!r}", key=program.name if " " in program.name else None, fix=fix)


def there_are(program: Program) -> str:
    """The commands of a program."""
    return f"there are {', '.join(program.verbs)}"
