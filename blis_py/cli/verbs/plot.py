"""`blis plot`: figures of results that are there."""

from __future__ import annotations

from blis_py.cli.flags.flag import Flag, Flags, Group
from blis_py.errors import InputError

RUNS = "runs"
_FLAGS = (
    Flag(RUNS, list[str], "", "Result folders, or the table of a sweep (CSV, Parquet).", metavar="PATH…"),
    Flag(
        "--figure",
        list[str],
        "",
        "Of a run: overview, latency_cdf, timeline, instances, batch, pools, ttft, tpot, itl, e2e, "
        "predicted_measured. Of several: throughput_latency, pareto, hit_rate. Default: all that fit.",
    ),
    Flag("--format", str, "", "png, svg or pdf; several with commas. Default png.", metavar="KIND,…"),
    Flag("--out", str, "", "Folder for the figures. Default plots in the folder of the result.", (), "DIR"),
    Flag("--by", list[str], "", "Settings that make a line of their own: scheduler.policy.", metavar="KEY"),
    Flag("--measured", str, "", "Measured run that predicted_measured compares with.", metavar="PATH"),
)
GROUPS: tuple[Group, ...] = (("Plot", _FLAGS),)


def plot(flags: Flags) -> None:
    """Draw figures of one result, or of several beside each other; prints the files."""
    if not flags.get(RUNS):
        raise InputError("no result given", key="blis plot", fix="name the folder of a result, or several")
    from blis_py.cli.verbs._plots import draw

    draw(flags[RUNS], flags)
