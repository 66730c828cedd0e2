"""The verbs of `blis`, each imported when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import typer

from blis_py.cli.command import add, application
from blis_py.version import __version__

VERBS = (
    "run",
    "replay",
    "plan",
    "sweep",
    "convert",
    "compose",
    "plot",
    "explain",
    "compare",
    "calibrate",
    "parity",
    "models",
    "gpus",
    "engines",
)
FURTHER = ("profile", "engine")
"""Verbs that have verbs of their own."""


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


def spread(arguments: list[str], many: Sequence[str] = ("--goodput", "--slo", "--vary")) -> list[str]:
    """`--goodput ttft:500 tpot:50`, as vLLM takes it, with the flag before every value."""
    result: list[str] = []
    flag = None
    for argument in arguments:
        if argument.startswith("-"):
            flag = argument if argument in many else None
        elif flag is not None and result[-1] != flag:
            result.append(flag)
        result.append(argument)
    return result
