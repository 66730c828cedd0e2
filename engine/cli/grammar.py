"""The flags that say which form outputs have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_py.cli.options import Flag, Flags
from blis_py.errors import InputError
from blis_py.files.opening import read_text

if TYPE_CHECKING:
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
SHARE = Flag("--constrained-share", float, "", "Share of the requests with that form. Default 1.")


def structured_outputs(flags: Flags) -> StructuredOutputsParams | None:
    """The form that the flags ask for; None where they ask for none.

    Raises:
        InputError: two of them; a file that cannot be read.
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


def constrained_share(flags: Flags) -> float:
    """The share of requests whose outputs have the form.

    Raises:
        InputError: no share, or one of nothing.
    """
    share: float = flags.get(SHARE.name, 1.0)
    if not 0 <= share <= 1:
        raise InputError("must be from 0 to 1", key=SHARE.name, value=share)
    if SHARE.name in flags and structured_outputs(flags) is None:
        fix = f"add {', '.join(flag.name for flag in STRUCTURED[:-1])} or {STRUCTURED[-1].name}"
        raise InputError("says how many, not which form", key=SHARE.name, value=share, fix=fix)
    return share
