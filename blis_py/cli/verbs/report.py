"""`blis report`: a result as one HTML file that opens anywhere."""

from __future__ import annotations

from pathlib import Path

from blis_py.cli.flags.flag import Flag, Flags, Group
from blis_py.errors import InputError
from blis_py.outputs.places import check_file

RUNS = "runs"
_FLAGS = (
    Flag(
        RUNS,
        list[str],
        "",
        "Folder of a run, plan, sweep or comparison, or what blis calibrate --report wrote; several runs.",
        metavar="RUN…",
    ),
    Flag("--out", str, "", "The HTML file.", ("-o",), "FILE"),
    Flag("--no-explain", bool, "", "Do not simulate the run again to explain its p99."),
)
GROUPS: tuple[Group, ...] = (("Report", _FLAGS),)


def report(flags: Flags) -> None:
    """Write a result as one HTML file: no external request, for a browser, a phone, or paper."""
    from blis_py.outputs.staging import replacing
    from blis_py.pages.opening import report_of

    out = flags.get("-o") or flags.get("--out")
    if out is None:
        raise InputError("where the report goes is not clear", key="--out", fix="add -o report.html")
    if {"-o", "--out"} <= flags.keys():
        raise InputError("is given twice", key="--out", fix="give -o or --out")
    check_file(out, "--out")
    text = report_of(flags.get(RUNS) or [], explain="--no-explain" not in flags)
    with replacing(Path(out)) as file:
        file.write_text(text, encoding="utf-8")
    print(out)
