"""A typer command whose flags arrive as one dictionary, only those that were given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from blis_py.cli.options import Flag, Flags, Group
from blis_py.errors import InputError

Verb = Callable[[Flags], None]

_KINDS: dict[Any, str] = {int: "a whole number", float: "a number"}
_METAVARS: dict[Any, str] = {int: "N", float: "X", str: "NAME"}


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

    def call(**values: Any) -> None:
        given = {name: value for name, value in values.items() if value is not None}
        verb({spellings[name][0]: value for name, value in given.items()})

    parameters = [_parameter(name, *parts) for name, parts in spellings.items()]
    call.__name__, call.__doc__ = verb.__name__, verb.__doc__
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    kinds = {name: (spelling, flag.kind) for name, (spelling, flag, _) in spellings.items()}
    app.command(verb.__name__, cls=type("Command", (_Command,), {"kinds": kinds}))(call)


class _Command(TyperCommand):
    """Converts what was given by itself.

    Typer would build a pydantic validator for every flag there is, given or not, which takes longer
    than a small simulation.
    """

    kinds: dict[str, tuple[str, Any]]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
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
    return spelling.lstrip("-").replace("-", "_")


def _parameter(name: str, spelling: str, flag: Flag, panel: str) -> inspect.Parameter:
    option: Any
    if spelling.startswith("-"):
        option = typer.Option(
            spelling,
            help=flag.help,
            metavar=flag.metavar or _METAVARS.get(flag.kind),
            hidden=flag.hidden or spelling != flag.name,
            rich_help_panel=panel,
            show_default=False,
        )
    else:
        option = typer.Argument(help=flag.help, metavar=flag.metavar, show_default=False)
    kind: Any = flag.kind | None
    annotation = Annotated[kind, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
