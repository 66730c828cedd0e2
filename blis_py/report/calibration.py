"""A calibration on the terminal and as a picture."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

import numpy as np

from blis_py.calibrate.compare import Calibration, LatencyError, Statistic
from blis_py.calibrate.token_times import Seconds, TokenTimes
from blis_py.outputs.staging import replacing


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
    for label, t in zip(("output tokens/s", "requests/s"), c.throughput, strict=True):
        text += f"\n{label}: {t.measured:,.4g} measured, {t.predicted:,.4g} predicted ({t.error:+.1%})"
    return text


def _cells(s: Statistic) -> tuple[str, ...]:
    real_ms, sim_ms = s.measured * 1e3, s.predicted * 1e3
    return s.name, f"{real_ms:,.3f}", f"{sim_ms:,.3f}", f"{sim_ms - real_ms:+,.3f}", f"{s.error:+.1%}"


def _of_each(times: TokenTimes, latency: str) -> Seconds:
    """One latency of every request, in s."""
    if latency == "ITL":
        assert times.gaps is not None
        return times.gaps.means()
    return {"TTFT": times.ttft_s, "TPOT": times.tpot_s, "E2E": times.e2e_s}[latency]


def plot_calibration(calibration: Calibration, path: str | Path) -> None:
    """Predicted over measured, a point per request (of ITL its mean), with a band of 10 % either side."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    errors: list[LatencyError] = [error for error in calibration.errors if error.group == "all"]
    figure = Figure(figsize=(4 * len(errors), 4.2), dpi=120, layout="constrained")
    real, sim = calibration.measured, calibration.predicted
    for axes, error in zip(np.atleast_1d(figure.subplots(1, len(errors))), errors, strict=True):
        x, y = (_of_each(times, error.latency) * 1e3 for times in (real, sim))
        shown = (x > 0) & (y > 0)
        low, high = np.nanmin([x[shown], y[shown]]) * 0.9, np.nanmax([x[shown], y[shown]]) * 1.1
        line = np.array([low, high])
        axes.fill_between(line, 0.9 * line, 1.1 * line, color="#1f77b4", alpha=0.15, lw=0, label="±10 %")
        axes.plot(line, line, color="#666666", lw=1)
        axes.plot(x[shown], y[shown], ".", ms=3, alpha=0.5, color="#d62728")
        if high > 20 * low:
            axes.set(xscale="log", yscale="log")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:,g}"))
                axis.set_minor_formatter(NullFormatter())
        axes.set(xlim=(low, high), ylim=(low, high))
        axes.set(xlabel="measured, ms", ylabel="predicted, ms")
        axes.set_title(f"{error.latency}: MAPE {error.mape:.1%}, r {error.pearson_r:.3f}", loc="left")
        axes.legend(loc="upper left", frameon=False)
    with replacing(path) as file:
        figure.savefig(file)
