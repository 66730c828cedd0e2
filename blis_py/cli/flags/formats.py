"""`--format`: how a command prints what it found."""

from __future__ import annotations

import sys
from collections.abc import Collection

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.config.layers import did_you_mean
from blis_py.errors import InputError

_TABLE_OR_JSON = ("table", "json")
FORMAT = Flag("--format", str, "", "table or json. By default a table on a terminal, else json.")


def format_of(flags: Flags, known: Collection[str] = _TABLE_OR_JSON) -> str:
    """The format given by `--format`; without it, a table for a terminal and JSON for a pipe.

    Raises:
        InputError: the format is unknown.
    """
    style: str = flags.get("--format", "table" if sys.stdout.isatty() else "json")
    if style not in known:
        raise InputError("unknown format", key="--format", value=style, fix=did_you_mean(style, known))
    return style
