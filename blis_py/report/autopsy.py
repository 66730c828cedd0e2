"""The causes of a prediction's error on the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from blis_py.calibrate.autopsy import Autopsy
from blis_py.calibrate.step_bias import Bias

if TYPE_CHECKING:
    from rich.table import Table

_WIDTH = 120


def print_autopsy(result: Autopsy, file: TextIO | None = None) -> None:
    """Print shares, the waterfall behind them, findings with remedies, and the steps behind those."""
    from rich.console import Console

    out = sys.stdout if file is None else file
    console = Console(file=out, width=None if out.isatty() else _WIDTH, highlight=False, markup=False)
    console.print(_heading(result))
    for table in (_shares(result), _waterfall(result)):
        console.print()
        console.print(table)
    console.print()
    console.print("Shares depend on the order, which is that of the table. Causes by weight, the mean over")
    console.print("the metrics of |share| / measured:")
    for line in _words(result):
        console.print(line, soft_wrap=True)
    console.print()
    console.print(_steps(result))
    console.print()
    console.print(_batches(result), soft_wrap=True)
    for note in result.notes:
        console.print(f"note: {note}", soft_wrap=True)


def _heading(result: Autopsy) -> str:
    text = f"Error autopsy over {result.requests:,} requests; first cause: {_first(result)}"
    if result.left_out:
        text += (
            f"\n{result.left_out:,} more completed in the engine, "
            "but not with every setting tried: they are left out"
        )
    return text


def _first(result: Autopsy) -> str:
    first = result.first
    return first.title if result.contributes(first) else "none, prediction and measurement agree"


def _shares(result: Autopsy) -> Table:
    table = _table("predicted minus measured, ms", result)
    for cause in result.causes:
        table.add_row(cause.title, *map(_signed, cause.shares_ns))
    table.add_section()
    table.add_row("whole error", *map(_signed, result.errors_ns))
    parts = zip(result.errors_ns, result.measured_ns, strict=True)
    table.add_row("", *(f"{error / real:+.1%}" if real else "" for error, real in parts))
    return table


def _waterfall(result: Autopsy) -> Table:
    table = _table("ms, corrected one after the other", result)
    table.add_row("predicted", *map(_ms, result.predicted_ns))
    for cause in result.causes:
        table.add_row(f"+ {cause.title}", *map(_ms, cause.values_ns))
    table.add_row("measured", *map(_ms, result.measured_ns))
    return table


def _table(title: str, result: Autopsy) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(title)
    for latency, statistic in result.metrics:
        table.add_column(f"{latency} {statistic}", justify="right")
    return table


def _words(result: Autopsy) -> list[str]:
    """Causes that contribute, largest first, then those that do not."""
    ranked = sorted(result.causes, key=result.weight, reverse=True)
    lines = []
    for cause in [c for c in ranked if result.contributes(c)]:
        lines.append(f"{cause.title} ({result.weight(cause):.1%}): {cause.found}")
        lines += [f"    try: {cause.fix}"] if cause.fix else []
    nothing = [c for c in result.causes if not result.contributes(c)]
    lines += [f"{cause.title}: contributes nothing ({cause.found})" for cause in nothing]
    return lines


def _steps(result: Autopsy) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("steps, each as the engine composed it")
    for name in ("count", "measured, s", "priced, s", "error", "MAPE"):
        table.add_column(name, justify="right")
    for regime, bias in result.bias.gpu.items():
        table.add_row(regime, *_of_steps(bias))
    table.add_row("host part of all", *_of_steps(result.bias.host))
    return table


def _of_steps(bias: Bias) -> tuple[str, ...]:
    if not bias.steps:
        return ("0", "", "", "", "")
    times = (f"{bias.measured_ns / 1e9:,.3f}", f"{bias.predicted_ns / 1e9:,.3f}")
    if not bias.measured_ns:
        return (f"{bias.steps:,}", *times, "", "")
    return (f"{bias.steps:,}", *times, f"{bias.error:+.1%}", f"{bias.mape:.1%}")


def _batches(result: Autopsy) -> str:
    batches, first = result.batches, result.batches.first
    text = f"batches: {batches.identical:,} of {batches.steps:,} steps are identical ({batches.share:.1%})"
    if first is not None:
        text += f"; step {first.step:,} is the first that differs, in its {first.part}"
    if batches.stopped_at is not None:
        text += f"; compared up to step {batches.stopped_at:,}, which failed in the engine"
    return text


def _ms(ns: int) -> str:
    return f"{ns / 1e6:,.3f}"


def _signed(ns: int) -> str:
    return f"{ns / 1e6:+,.3f}" if ns else "0"
