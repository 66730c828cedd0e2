"""`blis engine …`: the real engine. It lives in a package of its own, which needs torch.

That package builds on this one, so it is imported by name, on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from blis_py.cli._dispatch import dispatch
from blis_py.cli.program import ENGINE


def run_engine(arguments: Sequence[str]) -> int:
    """Runs `blis engine` with these arguments; returns the exit code."""
    if find_spec("torch") is None:
        print("error: the engine needs torch: pip install 'blis-py[engine]'", file=sys.stderr)
        return 1
    try:
        return dispatch(import_module(f"{ENGINE}.cli").PROGRAM, arguments)
    except RuntimeError as error:  # what torch raises, running out of memory included
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
