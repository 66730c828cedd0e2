"""Unhandled exceptions: one line on stderr, the full report in a file."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback

from blis_py.version import __version__

_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""Last words of names of variables that hold a secret."""
_VARIABLES, _KEY = "--launch-env", "--api-key"


def report(error: Exception) -> str:
    """The line; writes the file.

    Where `BLIS_DEBUG` is set in the environment, the traceback goes to stderr instead.
    """
    what = _without_keys(f"a bug in blis-py: {traceback.format_exception_only(error)[-1].strip()}")
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
        file.write(_without_keys(f"{sys.argv}\n\n{''.join(traceback.format_exception(error))}"))
    return file.name


def _without_keys(text: str) -> str:
    """The text without API keys, wherever they stand."""
    for key in sorted(_keys(), key=len, reverse=True):
        for spelling in (key, repr(key)[1:-1]):
            text = text.replace(spelling, "***")
    return text


def _keys() -> set[str]:
    """API keys and other secrets of the command line and of the environment."""
    variables, keys = list(os.environ.items()), set[str]()
    for word, following in zip(sys.argv, [*sys.argv[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        given = value if equals else following
        if flag.replace("_", "-") == _KEY:
            keys.add(given)
        elif flag.replace("_", "-") == _VARIABLES:
            name, _, held = given.partition("=")
            variables.append((name, held))
    keys |= {value for name, value in variables if name.upper().split("_")[-1] in _SECRETS}
    return keys - {""}
