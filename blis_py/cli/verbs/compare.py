"""`blis compare`: runs of the same requests beside each other."""

from __future__ import annotations

import sys

from blis_py.cli.flags.flag import Flag, Flags, Group
from blis_py.cli.flags.formats import FORMAT, format_of
from blis_py.cli.flags.out import FORCE, check_out, out_folder
from blis_py.cli.verbs._pages import write_out
from blis_py.comparison.compare import compare as compare_runs
from blis_py.errors import InputError
from blis_py.result import to_json

RUNS = "runs"
_FLAGS = (
    Flag(
        RUNS, list[str], "", "Folders of saved runs; the others are compared with the first.", metavar="RUN…"
    ),
    out_folder("compare.json and the picture, as PNG and SVG"),
    FORCE,
    FORMAT,
)
GROUPS: tuple[Group, ...] = (("Compare", _FLAGS),)


def compare(flags: Flags) -> None:
    """Put runs of the same requests beside each other: what differs, and who got better and who paid.

    Requests are matched by their ids. Runs of other requests are refused.
    """

    style = format_of(flags)
    runs: list[str] = flags.get(RUNS) or []
    if len(runs) < 2:
        raise InputError("needs two runs or more", key="blis compare", fix="name the folders of their --out")
    check_out(flags)
    comparison = compare_runs(*runs)
    try:
        if style == "json":
            sys.stdout.write(to_json(comparison.as_dict()))
        else:
            print(comparison)
        sys.stdout.flush()
    finally:
        if "--out" in flags:
            write_out(flags, "compare", to_json(comparison.as_dict()), comparison.plot)
