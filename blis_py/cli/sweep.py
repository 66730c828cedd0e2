"""`blis sweep`: many runs over any settings, one table."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from blis_py.cli.execute import say
from blis_py.cli.flag import Flag, Flags
from blis_py.cli.formats import format_of
from blis_py.cli.study import OUTPUT, VARY, WORK, base_of, cache_of, check_out, groups, under_way

if TYPE_CHECKING:
    import pandas as pd

    from blis_py.planning.sweep import Row, Sweep

_SWEEP = (
    *VARY,
    Flag("--seeds", int, "", "Runs of each combination, each with a seed of its own. Default 1."),
    Flag("--random", int, "", "Only so many of the combinations, drawn at random."),
    Flag("--metric", str, "", "What the best are best in: a figure of the table. Default ttft_ms.p99."),
)
_OUTPUT = (
    Flag("--out", str, "", "Folder for the table (CSV, Parquet), the space and the curves.", metavar="DIR"),
    *OUTPUT,
    Flag("--format", str, "", "table, json or csv. By default a table on a terminal, else json."),
)
GROUPS = groups((("Sweep", (*_SWEEP, *WORK)), ("Output", _OUTPUT)))
_METRIC = "ttft_ms.p99"
_SHOWN = 10


def sweep(flags: Flags) -> None:
    """Run every combination of some settings, with one or several seeds each: one row per run.

    A combination that cannot be run is a row that says why; the exit code stays 0.
    """
    from blis_py.planning.api import running, spanned
    from blis_py.planning.sweep import sweep as run_sweep

    style = format_of(flags, ("table", "json", "csv"))
    check_out(flags)
    base = base_of(flags)
    axes, listed, _ = spanned(flags.get("--vary", ()), (), flags.get("--space"))
    metric = flags.get("--metric", _METRIC)
    with under_way() as line, running(flags.get("--workers"), flags.get("--dask"), cache_of(flags)) as runner:
        best = _BestSoFar(metric)

        def told(rows: Sequence[Row], total: int) -> None:
            line(best.among(rows), len(rows), total)

        done = run_sweep(
            base,
            axes,
            runner,
            runs=listed,
            random=flags.get("--random"),
            seeds=flags.get("--seeds", 1),
            told=told,
        )
    stored = len(done.rows) - done.simulated
    say(f"{done!r}: {done.simulated:,} simulated, {stored:,} known, alike or refused")
    try:
        _show(done, style, metric)
        sys.stdout.flush()
    finally:
        if "--out" in flags:
            done.save(flags["--out"], force=flags.get("--force", False), plots="--no-plots" not in flags)


class _BestSoFar:
    """The best row of a list that grows, in words."""

    def __init__(self, metric: str) -> None:
        from blis_py.planning.sweep import larger_is_better

        self._metric, self._sign = metric, -1 if larger_is_better(metric) else 1
        self._seen, self._best = 0, (math.inf, "")

    def among(self, rows: Sequence[Row]) -> str:
        for row in rows[self._seen :]:
            value = row.outcome.figures.get(self._metric)
            if value is not None and self._sign * value < self._best[0]:
                settings = ", ".join(f"{name} {each}" for name, each in row.point.items())
                told = f"best {self._metric} so far {value:.4g}: {settings}"
                self._best = self._sign * value, told
        self._seen = len(rows)
        return self._best[1]


def _show(done: Sweep, style: str, metric: str) -> None:
    if style == "csv":
        done.table.to_csv(sys.stdout, index=False)
    elif style == "json":
        from blis_py.result import to_json

        sys.stdout.write(to_json([row.as_dict() for row in done.rows]))
    else:
        _table(done, metric)


def _table(done: Sweep, metric: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from blis_py.planning.sweep import FAILED, REFUSED

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, emoji=False, markup=False)
    if any(row.status not in (REFUSED, FAILED) for row in done.rows):
        best = done.best(metric, _SHOWN)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"best by {metric}", title_justify="left")
        for name in best.columns:
            table.add_column(_HEADINGS.get(name, name), justify="right" if _numeric(best, name) else "left")
        for values in best.itertuples(index=False):
            table.add_row(*map(_cell, values))
        console.print(table)
    for reason, count in _lost(done).items():
        console.print(f"{count:,} × {reason}")


_HEADINGS = {"mean": "mean of the seeds", "slo_met": "SLOs met"}


def _lost(done: Sweep) -> dict[str, int]:
    """What was refused or failed, and how often."""
    counts: dict[str, int] = {}
    for row in done.rows:
        reason = row.outcome.refused or row.outcome.failed
        if reason is not None:
            told = f"{row.status}: {reason}"
            counts[told] = counts.get(told, 0) + 1
    return counts


def _numeric(table: pd.DataFrame, name: str) -> bool:
    return table[name].dtype.kind in "if"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
