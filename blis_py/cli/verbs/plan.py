"""`blis plan`: the cheapest configuration that meets its targets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.flags.formats import FORMAT, format_of
from blis_py.cli.flags.out import check_out, draws, out_folder
from blis_py.cli.verbs._study import OUTPUT, VARY, WORK, cache_of, groups, study_of, under_way
from blis_py.errors import InputError
from blis_py.outputs.stopping import INTERRUPTED

if TYPE_CHECKING:
    from blis_py.planning.disaggregate import Layouts
    from blis_py.planning.plan import Plan
    from blis_py.planning.result import Standing
    from blis_py.planning.stationary import HighestRate
    from blis_py.planning.study import Study

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
    Flag(
        "--at-least",
        list[str],
        "",
        "Lower limits: output_tokens_per_s=5000, requests_per_s, goodput_per_s, tokens_per_s_per_user.",
        metavar="NAME=VALUE",
    ),
    Flag(
        "--confidence",
        str,
        "",
        "Share of the draws that must meet all targets: 90%.",
        metavar="SHARE",
    ),
    Flag(
        "--max-rate",
        bool,
        "",
        "The highest rate that meets all targets, or without targets the highest served: of the given "
        "cluster, or of each combination of --vary.",
    ),
    Flag(
        "--pareto",
        bool,
        "",
        "Tokens/s/GPU against tokens/s/user of each combination, with 1 to 512 requests in flight; with "
        "--at-least tokens_per_s_per_user=30 the most tokens/s/GPU at that speed, to 3 %.",
    ),
    Flag(
        "--gpus",
        int,
        "",
        "GPUs to use: at most so many, or with --max-rate all. Without a rate, the highest is found.",
        ("--total-gpus",),
    ),
    Flag("--fix", list[str], "", "A setting that is not searched: tp=8 (repeatable).", metavar="NAME=VALUE"),
    Flag(
        "--budget",
        str,
        "",
        "Time to answer in: 60s. With --max-rate, a number: dollars an hour of each combination.",
        metavar="TIME",
    ),
    Flag("--quick", bool, "", "The first answer: nothing is run for longer, and few settings are tried."),
    Flag("--no-tuning", bool, "", "Do not try token budget, sequences, scheduler, router around the winner."),
    Flag(
        "--most-requests",
        int,
        "",
        "Requests of the longest run. Default 10,000; 50,000 of generated or closed loops.",
    ),
    Flag("--disaggregate", str, "", "auto: as many instances with prefill and decode apart, compared."),
    Flag("--trials", int, "", "Most combinations to try where more than three settings vary. Default 64."),
    Flag("--draws", int, "", "Runs under the errors of the prediction; 0 = none. Default 20."),
)
_OUTPUT = (
    out_folder("the plan, its configuration, picture and start scripts"),
    Flag(
        "--emit",
        list[str],
        "",
        "Manifests of the answer and a proof to rerun: k8s, llm-d, dynamo or compose, and a folder "
        "(repeatable).",
        metavar="FORM DIR",
        many=True,
    ),
    *OUTPUT,
    FORMAT,
)
GROUPS = groups((("Plan", (*_PLAN, *WORK)), ("Output", _OUTPUT)))
_MAX_ROWS = 12


def plan(flags: Flags) -> int:
    """Find the cheapest configuration that meets its targets (--slo, --ttft, …), and its bottleneck.

    The exit code is 0 also if no configuration meets all targets: then the one that comes nearest is printed.
    An interrupt prints what is known so far; the exit code is 130 then.
    """
    style = format_of(flags)
    check_out(flags, others="--emit" in flags)
    folders: dict[str, str] = {}
    if "--emit" in flags:
        from blis_py.cli.verbs._emit import emit, emitted_to

        folders = emitted_to(flags)
    if "--pareto" in flags:
        _pareto(flags, style)
        return 0
    if "--num-instances" in flags and "--max-rate" not in flags and "--instances" not in flags:
        fix = "give the numbers to choose from with --instances, or add --max-rate for the rate of these"
        raise InputError("a plan chooses the number of instances", key="--num-instances", fix=fix)
    if {"--max-rate", "--trials"} <= flags.keys():
        problem = "does not apply to --max-rate, which tries every combination"
        raise InputError(problem, key="--trials", fix="drop it")
    _check_layouts(flags)
    with under_way() as line:
        result = found(flags, line)
    try:
        _show(result, style, _layouts(flags, result))
        sys.stdout.flush()
    finally:
        if "--out" in flags:
            result.save(flags["--out"], force="--force" in flags, plots=draws(flags))
        if folders:
            emit(result, folders, flags)
    return INTERRUPTED if result.ended == "interrupted" else 0


def found(flags: Flags, on_progress: Callable[[str], None] | None = None) -> Plan:
    """The plan that the flags ask for."""
    from blis_py.planning.api import plan as find_plan
    from blis_py.planning.prices import parse_prices

    return find_plan(
        study_of_plan(flags),
        vary=flags.get("--vary", ()),
        space=flags.get("--space"),
        instances=flags.get("--instances"),
        prices=parse_prices(flags.get("--price", ())),
        attainment=flags.get("--attainment"),
        max_lost=flags.get("--max-lost", 0.0),
        at_least=flags.get("--at-least", ()),
        confidence=flags.get("--confidence"),
        max_rate=flags.get("--max-rate", False),
        gpus=flags.get("--gpus", flags.get("--total-gpus")),
        budget=flags.get("--budget"),
        quick="--quick" in flags,
        tune="--no-tuning" not in flags,
        workers=flags.get("--workers"),
        dask=flags.get("--dask"),
        cache=cache_of(flags),
        on_progress=on_progress,
        **{name: flags[f"--{name}"] for name in ("trials", "draws") if f"--{name}" in flags},
        **({"most_requests": flags["--most-requests"]} if "--most-requests" in flags else {}),
    )


def study_of_plan(flags: Flags) -> Study:
    """The settings shared by all candidates."""
    from blis_py.planning.widths import held

    chosen = () if "--max-rate" in flags else ("num_instances",)
    return held(study_of(flags, chosen), flags.get("--fix", ()))


def _check_layouts(flags: Flags) -> None:
    """
    Raises:
        InputError: no comparison that is known.
    """
    choice = flags.get("--disaggregate", "auto")
    if choice != "auto":
        raise InputError("unknown value", key="--disaggregate", value=choice, fix="use auto")


def _layouts(flags: Flags, result: Plan) -> Layouts | None:
    """The comparison with prefill and decode apart, if it is wanted."""
    if "--disaggregate" not in flags:
        return None
    from blis_py.planning.api import running
    from blis_py.planning.disaggregate import layouts_of
    from blis_py.planning.prices import Prices, parse_prices

    prices = Prices(parse_prices(flags.get("--price", ())))
    with running(flags.get("--workers"), flags.get("--dask"), cache_of(flags)) as runner:
        return layouts_of(result.config, max(result.config.instances, 2), runner, prices)


_WITH_PARETO = (
    "--instances",
    "--attainment",
    "--confidence",
    "--max-rate",
    "--gpus",
    "--total-gpus",
    "--budget",
    "--quick",
    "--out",
    "--emit",
    "--disaggregate",
    "--max-lost",
    "--no-tuning",
    "--trials",
    "--draws",
)


def _pareto(flags: Flags, style: str) -> None:
    """Operating points of all combinations."""
    from blis_py.planning.api import pareto
    from blis_py.planning.prices import parse_prices
    from blis_py.planning.widths import held

    for name in _WITH_PARETO:
        if name in flags:
            problem = "does not apply to --pareto, which runs every combination at rising loads"
            raise InputError(problem, key=name, fix="drop it, or drop --pareto")
    with under_way():
        front = pareto(
            held(study_of(flags), flags.get("--fix", ())),
            vary=flags.get("--vary", ()),
            space=flags.get("--space"),
            at_least=flags.get("--at-least", ()),
            prices=parse_prices(flags.get("--price", ())),
            most_requests=flags.get("--most-requests"),
            workers=flags.get("--workers"),
            dask=flags.get("--dask"),
            cache=cache_of(flags),
        )
    if style == "json":
        from blis_py.result import to_json

        sys.stdout.write(to_json([each.as_dict() for each in front.points]))
    else:
        print(front)


def _show(result: Plan, style: str, layouts: Layouts | None = None) -> None:
    from blis_py.planning.report_data import summary
    from blis_py.planning.report_text import lines

    more = {} if layouts is None else {"disaggregation": layouts.summary()}
    if style == "json":
        from blis_py.result import to_json

        sys.stdout.write(to_json({**summary(result), **more}))
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, emoji=False, markup=False)
    for line in lines(result):
        console.print(line, soft_wrap=not sys.stdout.isatty())
    table = _rates(result) if result.rated else _standings(result) if len(result.standings) > 1 else None
    if table is not None:
        with console.capture() as drawn:
            console.print(table)
        sys.stdout.write(drawn.get().rstrip() + "\n")
    for line in () if layouts is None else layouts.lines():
        console.print(line, soft_wrap=True)


def _standings(result: Plan) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    names = list(dict.fromkeys(name for each in result.standings for name in each.point))
    for name in names:
        table.add_column(name)
    fixed = bool(result.best.parts)
    for name in ("targets met",) if fixed else ("meets all with",):
        table.add_column(name, justify="right")
    table.add_column(result.objective, justify="right")
    if not fixed:
        table.add_column("fails with", justify="right")
    table.add_column("why")
    ordered = sorted(result.standings, key=_by_cost)
    for each in ordered[:_MAX_ROWS]:
        cost = "" if each.cost is None else f"{each.cost:,.2f}".removesuffix(".00")
        settings = (str(each.point.get(name, "as given")) for name in names)
        if fixed:
            table.add_row(*settings, _fixed(each), cost, each.why)
        else:
            table.add_row(*settings, *_sized(each, cost), each.why)
    if len(ordered) > _MAX_ROWS:
        table.caption = f"and {len(ordered) - _MAX_ROWS:,} more"
    return table


def _by_cost(each: Standing) -> tuple[bool, float]:
    """Combinations that meet all targets first, each kind by cost."""
    return each.least is None, float("inf") if each.cost is None else each.cost


def _sized(each: Standing, cost: str) -> tuple[str, str, str]:
    """Cells of a combination with a number of instances to choose."""
    fails = "" if each.fails_at is None else f"{each.fails_at:,}"
    if each.least is not None:
        below = "no size below" if each.least == each.smallest else "not tried"
        return f"{'≤ ' if each.at_most else ''}{each.least:,}", cost, fails or below
    if fails:
        return f"> {fails}", cost, fails
    return ("none" if each.why else "not tried"), cost, ("cannot be run" if each.why else "not tried")


def _fixed(each: Standing) -> str:
    """Whether a combination with instances of its own meets all targets."""
    if each.least is not None:
        return "on a part" if each.at_most else "yes"
    return "no" if each.why else "not tried"


def _certainty(rate: HighestRate) -> str:
    """Bounds of the highest rate, in brackets behind it; empty if known to 5 %."""
    from blis_py.planning.report_text import bounds_text

    bounds = bounds_text(rate)
    if bounds:
        return f" ({bounds})"
    return "" if rate.settled else " (burst)"


def _rates(result: Plan) -> Any:
    """The highest rate of each combination, in descending order."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in result.rated[0].candidate.point:
        table.add_column(name)
    for name in ("instances", "GPUs", "dollars per hour", "requests/s", "$ per M output tokens"):
        table.add_column(name, justify="right")
    table.add_column("just above it")
    for each in result.rated[:_MAX_ROWS]:
        one, rate = each.candidate, each.rate
        cost = "no price" if one.dollars_per_hour is None else f"{one.dollars_per_hour:,.2f}"
        per_s = "none" if rate.per_s is None else f"{rate.per_s:,.3g}{_certainty(rate)}"
        million = "" if each.dollars_per_million is None else f"{each.dollars_per_million:,.2f}"
        cells = (*map(str, one.point.values()), f"{one.instances:,}", f"{one.gpus:,}", cost, per_s, million)
        table.add_row(*cells, str(rate.broken or ""))
    hidden = len(result.rated) - _MAX_ROWS
    if hidden > 0:
        table.caption = f"and {hidden:,} more"
    return table
