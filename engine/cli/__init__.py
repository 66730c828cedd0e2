"""`blis engine generate | bench | info | run`: one module per verb."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import typer

from blis_py.cli.command import add
from blis_py.errors import InputError

_VERBS = {
    "generate": "engine.cli.generate",
    "info": "engine.cli.info",
    "profile": "engine.cli.profile",
    "run": "engine.cli.run",
    "bench": "engine.cli.bench",
}
_BENCHES = {
    "throughput": "engine.cli.bench_throughput",
    "latency": "engine.cli.bench_latency",
    "replay": "engine.cli.bench_replay",
}


def dispatch(arguments: Sequence[str]) -> int:
    """Runs one `blis engine` command line; returns the exit code."""
    if arguments and arguments[0] == "bench":
        return _run("blis engine bench", _BENCHES, "Measure the engine.", list(arguments[1:]))
    return _run("blis engine", _VERBS, "The real engine, on one GPU or on the CPU.", list(arguments))


def _run(program: str, verbs: dict[str, str], what: str, arguments: list[str]) -> int:
    chosen = arguments[0] if arguments else "--help"
    if chosen not in verbs and not chosen.startswith("-"):
        raise InputError("no such command", key=program, value=chosen, fix=f"use {', '.join(verbs)}")
    app = typer.Typer(help=what, add_completion=False, pretty_exceptions_enable=False)

    @app.callback()
    def group() -> None: ...

    for name in [chosen] if chosen in verbs else list(verbs):
        module = import_module(verbs[name])
        add(app, getattr(module, name), module.GROUPS, arguments[1:])
    return app(args=arguments or ["--help"], prog_name=program, standalone_mode=False) or 0
