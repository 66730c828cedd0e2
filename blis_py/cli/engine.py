"""`blis engine …`: the real engine. It lives in the package `engine`, which needs torch.

That package builds on this one, so it is imported by name, on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from blis_py.cli._dispatch import dispatch


def run_engine(arguments: Sequence[str]) -> int:
    """Runs `blis engine` with these arguments; returns the exit code."""
    if find_spec("torch") is None:
        where = "where the sources of blis-py are"
        print(f"error: the engine needs torch: pip install '.[engine]' {where}", file=sys.stderr)
        return 1
    try:
        return dispatch(import_module("engine.cli").PROGRAM, arguments)
    except RuntimeError as error:  # what torch raises, running out of memory included
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
