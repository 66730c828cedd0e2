"""Flags for structured outputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.errors import InputError
from blis_py.files.opening import read_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blis_py.requests.table import RequestTable
    from engine.grammar.params import StructuredOutputsParams

STRUCTURED = (
    Flag(
        "--json-schema",
        str,
        "json",
        "Outputs are JSON of this schema.",
        ("--guided-json",),
        "TEXT|@FILE",
    ),
    Flag("--regex", str, "regex", "Outputs match it as a whole.", ("--guided-regex",), "TEXT|@FILE"),
    Flag(
        "--grammar",
        str,
        "grammar",
        "Outputs are of this EBNF grammar (GBNF).",
        ("--guided-grammar",),
        "TEXT|@FILE",
    ),
)


def structured_outputs(flags: Flags) -> StructuredOutputsParams | None:
    """The structured-output parameters from the flags; None without any.

    Raises:
        InputError: two forms at once, or an unreadable file.
    """
    from engine.grammar.params import StructuredOutputsParams

    given = {flag: name for flag in STRUCTURED for name in (flag.name, *flag.aliases) if name in flags}
    if not given:
        return None
    if len(given) > 1:
        raise InputError("outputs have one form", key=" and ".join(given.values()), fix="drop one of them")
    ((flag, name),) = given.items()
    text: str = flags[name]
    if text.startswith("@"):
        text = read_text(Path(text[1:])).rstrip("\n")
    form: dict[str, Any] = {flag.key: text}
    return StructuredOutputsParams(**form)


def chosen(table: RequestTable, form: StructuredOutputsParams | None) -> NDArray[np.bool_] | None:
    """Mask of the constrained requests: those marked in the workload, else all of them.

    Raises:
        InputError: the workload marks constrained requests, but no form is given.
    """
    constrained = table.constrained
    if form is None:
        if constrained is not None and constrained.any():
            fix = f"add {', '.join(flag.name for flag in STRUCTURED[:-1])} or {STRUCTURED[-1].name}"
            key = "workload.structured_output_ratio"
            raise InputError("requests are constrained, but no form is given", key=key, fix=fix)
        return None
    return np.ones(len(table), dtype=np.bool_) if constrained is None else constrained
