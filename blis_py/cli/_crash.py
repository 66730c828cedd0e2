"""Unhandled exceptions: one line on stderr, the full report in a file."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback

from blis_py.version import __version__


def report(error: Exception) -> str:
    """The line; writes the file.

    Where `BLIS_DEBUG` is set in the environment, the traceback goes to stderr instead.
    """
    what = f"a bug in blis-py: {traceback.format_exception_only(error)[-1].strip()}"
    if os.environ.get("BLIS_DEBUG"):
        traceback.print_exception(error)
        return f"{what}; please report it"
    try:
        file = _write(error)
    except OSError:
        return f"{what}; please report it, with the traceback that it prints when BLIS_DEBUG=1 is set"
    return f"{what}; please report it with the file {file}"


def _write(error: Exception) -> str:
    with tempfile.NamedTemporaryFile(
        "w", prefix="blis-bug-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
    ) as file:
        file.write(f"blis-py {__version__}, Python {platform.python_version()}, {platform.platform()}\n")
        file.write(f"{sys.argv}\n\n")
        traceback.print_exception(error, file=file)
    return file.name
