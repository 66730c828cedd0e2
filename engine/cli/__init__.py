"""`blis engine generate | bench | info | run`: one module per verb."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module

import typer

from blis_py.cli.apps import launch
from blis_py.cli.command import add, application
from blis_py.errors import InputError

_WHAT = "The real engine, on one GPU or on the CPU."
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
    return _run("blis engine", _VERBS, _WHAT, list(arguments))


def _run(program: str, verbs: dict[str, str], what: str, arguments: list[str]) -> int:
    chosen = arguments[0] if arguments else "--help"
    if chosen not in verbs and not chosen.startswith("-"):
        raise InputError("no such command", key=program, value=chosen, fix=f"use {', '.join(verbs)}")
    app = _app(what, verbs, [chosen] if chosen in verbs else list(verbs), arguments[1:])
    return launch(app, arguments or ["--help"], program)


def _app(what: str, verbs: dict[str, str], wanted: Sequence[str], arguments: Sequence[str]) -> typer.Typer:
    app = application(what)

    @app.callback()
    def group() -> None: ...

    for name in wanted:
        module = import_module(verbs[name])
        add(app, getattr(module, name), module.GROUPS, arguments)
    return app


def engine_app(words: Sequence[str]) -> typer.Typer:
    """For a shell that completes these words: with the flags of the verb among them, and else only names."""
    if "bench" in words[:1]:
        app = _named_only(_WHAT, ())
        app.add_typer(_completed(_BENCHES, words[1:]), name="bench")
        return app
    return _completed(_VERBS, words)


def _completed(verbs: dict[str, str], words: Sequence[str]) -> typer.Typer:
    chosen = [name for name in verbs if name in words[:1]]
    return _app(_WHAT, verbs, chosen, ()) if chosen else _named_only(_WHAT, verbs)


def _named_only(what: str, names: Iterable[str]) -> typer.Typer:
    app = application(what)

    @app.callback()
    def group() -> None: ...

    for name in names:
        app.command(name)(lambda: None)
    return app
