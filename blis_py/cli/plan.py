"""`blis plan`: the cheapest configuration that keeps its targets."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from blis_py.cli.flag import Flag, Flags
from blis_py.cli.formats import FORMAT, format_of
from blis_py.cli.study import OUTPUT, VARY, WORK, base_of, cache_of, check_out, groups, under_way
from blis_py.errors import InputError

if TYPE_CHECKING:
    from blis_py.planning.disaggregate import Layouts
    from blis_py.planning.plan import Plan

_PLAN = (
    *VARY,
    Flag("--instances", str, "", "Numbers of instances to choose from. Default 1:32.", metavar="FROM:TO"),
    Flag("--price", list[str], "", "Dollars per GPU and hour: h100=2.5 (repeatable).", metavar="GPU=PRICE"),
    Flag(
        "--attainment",
        str,
        "",
        "Least share of requests that meet all --goodput targets: 99%, or by class: critical=99.9%.",
        metavar="SHARE",
    ),
    Flag("--max-lost", str, "", "Share of requests that may be lost. Default 0.", metavar="SHARE"),
    Flag("--max-rate", bool, "", "Choose nothing: the highest rate that the given cluster holds."),
    Flag("--disaggregate", str, "", "auto: as many instances with prefill and decode apart, compared."),
    Flag("--trials", int, "", "Combinations to try, of more than three settings with more. Default 64."),
    Flag("--draws", int, "", "Runs with other step times, for the probability; 0 = none. Default 20."),
)
_OUTPUT = (
    Flag(
        "--out", str, "", "Folder for the plan, its configuration, picture and start scripts.", metavar="DIR"
    ),
    *OUTPUT,
    FORMAT,
)
GROUPS = groups((("Plan", (*_PLAN, *WORK)), ("Output", _OUTPUT)))
_MAX_ROWS = 12


def plan(flags: Flags) -> None:
    """Find the cheapest configuration that keeps its targets (--slo, --attainment), and what binds it.

    The exit code is 0 also if no configuration meets all targets: then the one that comes nearest is printed.
    """
    from blis_py.planning.api import chosen_plan
    from blis_py.planning.prices import parse_prices

    style = format_of(flags)
    check_out(flags)
    if "--num-instances" in flags and "--max-rate" not in flags and "--instances" not in flags:
        fix = "give the numbers to choose from with --instances, or find the rate of these with --max-rate"
        raise InputError("a plan chooses the number of instances", key="--num-instances", fix=fix)
    base = base_of(flags)
    with under_way() as line:
        found = chosen_plan(
            base,
            vary=flags.get("--vary", ()),
            space=flags.get("--space"),
            instances=flags.get("--instances"),
            prices=parse_prices(flags.get("--price", ())),
            attainment=flags.get("--attainment"),
            max_lost=flags.get("--max-lost", 0.0),
            max_rate=flags.get("--max-rate", False),
            workers=flags.get("--workers"),
            dask=flags.get("--dask"),
            cache=cache_of(flags),
            told=line,
            **{name: flags[f"--{name}"] for name in ("trials", "draws") if f"--{name}" in flags},
        )
    try:
        _show(found, style, _layouts(flags, found))
        sys.stdout.flush()
    finally:
        if "--out" in flags:
            found.save(flags["--out"], force=flags.get("--force", False), plots="--no-plots" not in flags)


def _layouts(flags: Flags, found: Plan) -> Layouts | None:
    """The comparison with prefill and decode apart, if it was asked for."""
    asked = flags.get("--disaggregate")
    if asked is None:
        return None
    if asked != "auto":
        raise InputError("unknown value", key="--disaggregate", value=asked, fix="use auto")
    from blis_py.planning.api import running
    from blis_py.planning.disaggregate import layouts_of

    with running(flags.get("--workers"), flags.get("--dask"), cache_of(flags)) as runner:
        return layouts_of(found.config, max(found.config.instances, 2), runner)


def _show(found: Plan, style: str, layouts: Layouts | None = None) -> None:
    from blis_py.planning.report_text import lines, summary

    more = {} if layouts is None else {"disaggregation": layouts.summary()}
    if style == "json":
        from blis_py.result import to_json

        sys.stdout.write(to_json({**summary(found), **more}))
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, emoji=False, markup=False)
    for line in lines(found):
        console.print(line, soft_wrap=not sys.stdout.isatty())
    if len(found.standings) > 1:
        with console.capture() as drawn:
            console.print(_standings(found))
        sys.stdout.write(drawn.get().rstrip() + "\n")
    for line in () if layouts is None else layouts.lines():
        console.print(line, soft_wrap=True)


def _standings(found: Plan) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in found.standings[0].point:
        table.add_column(name)
    table.add_column("holds with", justify="right")
    table.add_column(found.objective, justify="right")
    table.add_column("not with", justify="right")
    table.add_column("why")
    ordered = sorted(found.standings, key=lambda each: float("inf") if each.cost is None else each.cost)
    for each in ordered[:_MAX_ROWS]:
        least = "-" if each.least is None else f"{'≤ ' if each.at_most else ''}{each.least:,}"
        cost = "-" if each.cost is None else f"{each.cost:,.2f}".removesuffix(".00")
        failing = "-" if each.fails_at is None else f"{each.fails_at:,}"
        table.add_row(*map(str, each.point.values()), least, cost, failing, each.why)
    if len(ordered) > _MAX_ROWS:
        table.caption = f"and {len(ordered) - _MAX_ROWS:,} more"
    return table
