"""The picture of the guide to calibration: a recorded run, predicted rightly and with half the KV blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from blis_py.report.autopsy_plot import TOO_HIGH, waterfall

from blis_py.calibrate.autopsy import autopsy
from blis_py.calibrate.recorded import scheduler_config
from blis_py.calibrate.rerun import measured_times, rerun
from blis_py.latency.fitted import Fitted
from blis_py.latency.fitted_profile import read_profile
from blis_py.traces.steplog import read_step_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from blis_py.calibrate.token_times import TokenTimes

RECORDED = Path(__file__).resolve().parent / "recorded"


def figure() -> Figure:
    from matplotlib.figure import Figure

    log = read_step_log(RECORDED / "tiny-run" / "steps.csv.gz")
    latency = Fitted(read_profile(RECORDED / "tiny-profile"))
    settings = scheduler_config(log)
    mistaken = replace(settings, num_kv_blocks=settings.num_kv_blocks // 2)
    picture = Figure(figsize=(11, 6.4), layout="constrained")
    axes = picture.subplots(2, 3, width_ratios=(1, 1.1, 1.1))
    real = measured_times(log)
    rows = (
        (settings, "#333333", f"{settings.num_kv_blocks} KV blocks, as the engine has"),
        (mistaken, TOO_HIGH, f"{mistaken.num_kv_blocks} KV blocks, by mistake"),
    )
    for row, (config, colour, label) in zip(axes, rows, strict=True):
        _each_request(row[0], real, rerun(log, latency, config=config), colour, label)
        result = autopsy(log, config, latency)
        waterfall(row[1], result, "TTFT", "mean")
        waterfall(row[2], result, "E2E", "mean")
        row[2].tick_params(labelleft=False)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
    return picture


def _each_request(axes: Axes, real: TokenTimes, predicted: TokenTimes, colour: str, label: str) -> None:
    """TTFT, predicted over measured, with a band of 10 % either side."""
    _, ours, theirs = np.intersect1d(real.request_id, predicted.request_id, return_indices=True)
    line = np.array([10.0, 2000.0])
    axes.fill_between(line, 0.9 * line, 1.1 * line, color="#1f77b4", alpha=0.2, lw=0, label="±10 %")
    axes.plot(line, line, color="#888888", lw=1)
    axes.plot(real.ttft_s[ours] * 1e3, predicted.ttft_s[theirs] * 1e3, "o", ms=3, alpha=0.6, color=colour)
    axes.set(xscale="log", yscale="log", xlim=line, ylim=line)
    axes.set(xlabel="TTFT measured, ms", ylabel="TTFT predicted, ms")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title(label, loc="left")
    axes.legend(loc="lower right", frameon=False, fontsize=8)
