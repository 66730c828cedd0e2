"""Typer applications, and commands whose flags arrive as one dictionary, only those that were given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from keyword import iskeyword
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from blis_py.cli.flag import Flag, Flags, Group
from blis_py.errors import InputError

Verb = Callable[[Flags], int | None]
"""It may have an exit code other than 0."""

HELP = {"help_option_names": ["-h", "--help"]}
_KINDS: dict[Any, str] = {int: "a whole number", float: "a number"}
_METAVARS: dict[Any, str] = {int: "N", float: "X", str: "NAME"}


def application(what: str, *, add_completion: bool = False) -> typer.Typer:
    """One without commands yet.

    Args:
        what: it is, for its help.
        add_completion: it has the flags with which a shell learns to complete its command lines.
    """
    return typer.Typer(
        help=_literal(what),
        context_settings=HELP,
        add_completion=add_completion,
        pretty_exceptions_enable=False,
    )


def _literal(text: str) -> str:
    """Text in which brackets are no markup."""
    return text.replace("[", r"\[")


def add(app: typer.Typer, verb: Verb, groups: tuple[Group, ...], arguments: Sequence[str]) -> None:
    """Makes `verb` a command of `app`, with the flags of all groups.

    Of the hidden flags, which are many, only those among the `arguments`: each costs half a millisecond.
    """
    named = {argument.partition("=")[0] for argument in arguments}
    spellings = {
        _parameter_name(spelling): (spelling, flag, panel)
        for panel, flags in groups
        for flag in flags
        for spelling in (flag.name, *flag.aliases)
        if spelling in named or not (flag.hidden or spelling != flag.name)
    }

    def call(**values: Any) -> int | None:
        given = {name: value for name, value in values.items() if value is not None}
        return verb({spellings[name][0]: value for name, value in given.items()})

    parameters = [_parameter(name, *parts) for name, parts in spellings.items()]
    call.__name__, call.__doc__ = verb.__name__, _literal(verb.__doc__ or "")
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    kinds = {name: (spelling, flag.kind) for name, (spelling, flag, _) in spellings.items()}
    command = type("Command", (_Command,), {"kinds": kinds})
    app.command(verb.__name__, cls=command, context_settings=HELP)(call)


class _Command(TyperCommand):
    """Converts what was given by itself.

    Typer would build a pydantic validator for every flag there is, given or not, which takes longer
    than a small simulation.
    """

    kinds: dict[str, tuple[str, Any]]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell asks what could follow
            return super().parse_args(ctx, args)
        given, extra, _ = self.make_parser(ctx).parse_args(args=args)
        for option in self.get_params(ctx):
            if option.is_eager and option.name in given:  # --help
                option.handle_parse_result(ctx, given, [])
        if extra:
            raise InputError("does not belong here", value=extra[0], fix="flags start with --")
        given = {name: value for name, value in given.items() if isinstance(value, (str, bool, list, tuple))}
        ctx.params.update({name: _convert(*self.kinds[name], value) for name, value in given.items()})
        return []


def _convert(spelling: str, kind: Any, value: Any) -> Any:
    if kind not in _KINDS:
        return value
    try:
        return kind(value)
    except ValueError:
        raise InputError(f"must be {_KINDS[kind]}", key=spelling, value=value) from None


def _parameter_name(spelling: str) -> str:
    name = spelling.lstrip("-").replace("-", "_")
    if spelling.startswith("-") and not spelling.startswith("--"):
        return f"short_{name}"
    return f"{name}_" if iskeyword(name) else name


def _parameter(name: str, spelling: str, flag: Flag, panel: str) -> inspect.Parameter:
    option: Any
    if spelling.startswith("-"):
        option = typer.Option(
            spelling,
            help=_literal(flag.help),
            metavar=flag.metavar or _METAVARS.get(flag.kind),
            hidden=flag.hidden or spelling != flag.name,
            rich_help_panel=panel,
            show_default=False,
        )
    else:
        option = typer.Argument(help=_literal(flag.help), metavar=flag.metavar, show_default=False)
    kind: Any = flag.kind | None
    annotation = Annotated[kind, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
