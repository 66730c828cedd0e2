"""The typer applications of `blis`: for help, completion, and command lines that are not plain."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

import typer

from blis_py.cli.command import add, application
from blis_py.cli.verbs import FURTHER, VERBS
from blis_py.errors import InputError
from blis_py.version import __version__

_COMMAND_LINE_ERROR: type[BaseException] = typer.BadParameter.__mro__[2]
"""The base of what typer raises about a command line; its public name depends on typer's version."""


def app_of(verbs: Sequence[str], arguments: Sequence[str] = (), *, whole: bool = False) -> typer.Typer:
    """Some of the verbs. One alone is the whole application: the others need not be imported.

    Args:
        whole: it is the application `blis` itself.
    """
    app = application("Simulate clusters that serve large language models.", add_completion=whole)
    for verb in verbs:
        module = import_module(f"blis_py.cli.{verb}")
        add(app, getattr(module, verb), module.GROUPS, arguments)
    return app


def everything(verbs: Sequence[str] = (*VERBS, *FURTHER)) -> typer.Typer:
    """All verbs, for help and for what is no verb."""
    app = app_of(verbs, whole=True)

    @app.callback(invoke_without_command=True)
    def blis(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
        if version:
            print(__version__)
            raise typer.Exit

    return app


def launch(app: typer.Typer, arguments: Sequence[str], name: str) -> int:
    """Has the application `name` do what a command line says; returns the exit code.

    Raises:
        InputError: the command line is wrong.
        KeyboardInterrupt: somebody did not want to wait for the end.
    """
    try:
        return app(args=list(arguments), prog_name=name, standalone_mode=False) or 0
    except typer.Abort:
        raise KeyboardInterrupt from None
    except _COMMAND_LINE_ERROR as error:
        raise _told(error) from None


def _told(error: BaseException) -> InputError:
    """Typer's message, and of an unknown flag the nearest known one at most."""
    message: str = error.message  # type: ignore[attr-defined]
    name = getattr(error, "option_name", "")
    near = get_close_matches(name, getattr(error, "possibilities", None) or (), n=1, cutoff=0.75)
    message = message[:1].lower() + message[1:].rstrip(".")
    return InputError(message, fix=f"did you mean {near[0]}?" if near else None)
