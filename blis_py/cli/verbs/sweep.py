"""`blis sweep`: many runs over any settings, one table."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.flags.formats import format_of
from blis_py.cli.flags.out import check_out, draws, out_folder
from blis_py.cli.verbs._execute import say
from blis_py.cli.verbs._study import OUTPUT, VARY, WORK, cache_of, groups, study_of, under_way

if TYPE_CHECKING:
    from blis_py.planning.sweep import Row, Sweep

_SWEEP = (
    *VARY,
    Flag("--seeds", int, "", "Runs of each combination, each with a seed of its own. Default 1."),
    Flag("--random", int, "", "Only so many of the combinations, drawn at random."),
    Flag(
        "--metric",
        str,
        "",
        "Figure by which the table is ranked: ttft.p99, output_tokens_per_s, also in the words of other "
        "benchmarks. Default: the cheapest that meets all targets first.",
    ),
)
_OUTPUT = (
    out_folder("the table (CSV, Parquet), the space and the curves"),
    *OUTPUT,
    Flag("--format", str, "", "table, json or csv. By default a table on a terminal, else json."),
)
GROUPS = groups((("Sweep", (*_SWEEP, *WORK)), ("Output", _OUTPUT)))
_METRIC = "ttft_ms.p99"
_SHOWN = 10
_MOST_NOTES = 4


def sweep(flags: Flags) -> None:
    """Run every combination of the given settings, with one or several seeds each: one row per run.

    A combination that cannot be run is a row that says why; the exit code stays 0.
    """
    from blis_py.planning.api import running, spanned
    from blis_py.planning.sweep import sweep as run_sweep

    style = format_of(flags, ("table", "json", "csv"))
    check_out(flags)
    study = study_of(flags)
    axes, listed, _ = spanned(flags.get("--vary", ()), (), flags.get("--space"))
    metric = flags.get("--metric", _METRIC)
    with under_way() as line, running(flags.get("--workers"), flags.get("--dask"), cache_of(flags)) as runner:
        best = _BestSoFar(metric)

        def show_progress(rows: Sequence[Row], total: int) -> None:
            line(best.among(rows), len(rows), total)

        done = run_sweep(
            study,
            axes,
            runner,
            runs=listed,
            random=flags.get("--random"),
            seeds=flags.get("--seeds", 1),
            on_progress=show_progress,
        )
    stored = len(done.rows) - done.simulated
    others = f", {stored:,} known, alike or refused" if stored else ""
    say(f"{done.size}: {done.simulated:,} simulated{others}")
    try:
        _show(done, style, flags.get("--metric"))
        sys.stdout.flush()
    finally:
        if "--out" in flags:
            done.save(flags["--out"], force="--force" in flags, plots=draws(flags))


class _BestSoFar:
    """The best row of a list that grows, in words."""

    def __init__(self, metric: str) -> None:
        self._metric, self._shown, self._best = metric, 0, (math.inf, "")

    def among(self, rows: Sequence[Row]) -> str:
        from blis_py.planning.sweep import worth_of

        for row in rows[self._shown :]:
            worth = worth_of(self._metric, row.outcome.figures)
            if worth is not None and worth < self._best[0]:
                settings = ", ".join(f"{name} {each}" for name, each in row.point.items())
                line = f"best {self._metric} so far {abs(worth):.4g}: {settings}"
                self._best = worth, line
        self._shown = len(rows)
        return self._best[1]


def _show(done: Sweep, style: str, metric: str | None) -> None:
    if style == "csv":
        sys.stdout.write(done.csv())
    elif style == "json":
        from blis_py.result import to_json

        sys.stdout.write(to_json([row.as_dict() for row in done.rows]))
    else:
        _table(done, metric)


def _table(done: Sweep, wanted: str | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from blis_py.planning.sweep_words import amount, notes, titled

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, emoji=False, markup=False)
    if any(row.outcome.ran for row in done.rows):
        metric = done.require(wanted or done.default_metric())
        ranked = done.ranked(metric) if wanted else done.cheapest(metric)
        costs, targets = done.costs(), any("slo_met" in each for each in ranked)
        order = done.order(metric, wanted=bool(wanted), targets=targets)
        console.print(order.replace(metric, titled(metric)))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in done.names:
            table.add_column(name, justify="right" if _numeric(ranked, name) else "left")
        for name in (titled(metric), "GPUs", "$ per hour", "$ per M output tokens"):
            table.add_column(name, justify="right")
        if targets:
            table.add_column("targets met")
        for values in ranked[:_SHOWN]:
            point = [values[name] for name in done.names]
            cost = costs.get(tuple(map(str, point)))
            cells = [*map(_cell, point), amount(metric, values["mean"])]
            cells.append("" if cost is None else f"{cost.gpus:,}")
            dollars = (None, None) if cost is None else (cost.dollars_per_hour, cost.dollars_per_million)
            cells += ["no price" if each is None else f"{each:,.2f}" for each in dollars]
            table.add_row(*cells, *([_cell(values["slo_met"])] if targets else []))
        if len(ranked) > _SHOWN:
            table.caption = f"and {len(ranked) - _SHOWN:,} more, in --format csv"
        console.print(table)
    for reason, count in _lost(done).items():
        console.print(f"{count:,} × {reason}")
    printed = notes(done)
    for note in printed[:_MOST_NOTES]:
        say(f"note: {note}")
    if len(printed) > _MOST_NOTES:
        say(f"note: {len(printed) - _MOST_NOTES:,} more; blis run shows those of one run")


def _lost(done: Sweep) -> dict[str, int]:
    """Refused and failed runs, with counts."""
    counts: dict[str, int] = {}
    for row in done.rows:
        reason = row.outcome.refused or row.outcome.failed
        if reason is not None:
            why = f"{row.status}: {reason}"
            counts[why] = counts.get(why, 0) + 1
    return counts


def _numeric(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return all(isinstance(row[name], int | float) and not isinstance(row[name], bool) for row in rows)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
