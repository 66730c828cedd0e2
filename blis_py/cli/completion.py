"""What a shell asks for while somebody types: verbs, their verbs, and flags."""

from __future__ import annotations

import os
from importlib import import_module

from blis_py.cli.apps import everything, launch
from blis_py.cli.profile import profile_app
from blis_py.cli.verbs import VERBS


def complete() -> int:
    """Answers a shell. What it asks is in the environment, put there by the script of `--show-completion`."""
    app = everything(VERBS)
    app.add_typer(profile_app(), name="profile")
    words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()
    try:
        if "engine" not in words[1:2]:
            raise ImportError  # whose commands nobody wants yet
        engine = import_module("engine.cli")
        app.add_typer(engine.engine_app(words[2:]), name="engine")
    except ImportError:  # without torch there are none
        app.command("engine")(lambda: None)
    return launch(app, [], "blis")
