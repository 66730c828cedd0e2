"""A calibration on the terminal."""

from __future__ import annotations

import sys
from typing import TextIO

from blis_py.calibrate.compare import Calibration, Statistic


def print_calibration(calibration: Calibration, file: TextIO | None = None) -> None:
    """Measured, predicted and error of every latency, for all requests and by SLO class."""
    from rich.console import Console
    from rich.table import Table

    out = sys.stdout if file is None else file
    console = Console(file=out, width=None if out.isatty() else 110, highlight=False, markup=False)
    console.print(_heading(calibration))
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("latency, ms")
    for name in ("", "measured", "predicted", "difference", "error", "MAPE", "bias", "r", "grade"):
        table.add_column(name, justify="right" if name else "left")
    many = len({error.group for error in calibration.errors}) > 1
    for error in calibration.errors:
        label = f"{error.latency} {error.group}" if many else error.latency
        fit = (f"{error.mape:.1%}", f"{error.bias:+.1%}", f"{error.pearson_r:.3f}", error.quality)
        for row, statistic in enumerate(error.statistics):
            table.add_row("" if row else label, *_cells(statistic), *(() if row else fit))
    console.print()
    console.print(table)
    for note in calibration.notes:
        console.print(f"note: {note}")


def _heading(c: Calibration) -> str:
    count = len(c.measured.request_id)
    text = f"{count:,} requests, measured in {c.measured.source} and predicted in {c.predicted.source}"
    for count, where in ((c.only_measured, "measured"), (c.only_predicted, "predicted")):
        text += f"\n{count:,} more completed only in the {where} run" if count else ""
    known = [
        t for t in zip(("output tokens/s", "requests/s"), c.throughput, strict=True) if t[1].measured > 0
    ]
    for label, t in known:
        text += f"\n{label}: {t.measured:,.4g} measured, {t.predicted:,.4g} predicted ({t.error:+.1%})"
    for good in c.goodput:
        shares = f"{good.measured:.1%} measured, {good.predicted:.1%} predicted"
        text += f"\nrequests of {good.group} that meet their targets: {shares} (of {good.requests:,})"
    return text


def _cells(s: Statistic) -> tuple[str, ...]:
    real_ms, sim_ms = s.measured * 1e3, s.predicted * 1e3
    return s.name, f"{real_ms:,.3f}", f"{sim_ms:,.3f}", f"{sim_ms - real_ms:+,.3f}", f"{s.error:+.1%}"
