"""The picture of the guide to calibration: a recorded run, predicted rightly and with half the KV blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blis_py.calibrate.autopsy import autopsy
from blis_py.calibrate.recorded import scheduler_config
from blis_py.calibrate.rerun import measured_times, rerun
from blis_py.figures.agreement import scatter
from blis_py.figures.style import INK, Picture, in_house_style, sign
from blis_py.figures.waterfall import TOO_HIGH, waterfall
from blis_py.latency.fitted import Fitted
from blis_py.latency.fitted_profile import read_profile
from blis_py.traces.steplog import read_step_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from blis_py.calibrate.token_times import TokenTimes

RECORDED = Path(__file__).resolve().parent / "recorded"


@in_house_style
def figure() -> Picture:
    log = read_step_log(RECORDED / "tiny-run" / "steps.csv.gz")
    latency = Fitted(read_profile(RECORDED / "tiny-profile"))
    settings = scheduler_config(log)
    mistaken = replace(settings, num_kv_blocks=settings.num_kv_blocks // 2)
    picture = Picture(figsize=(11, 6.8), layout="constrained")
    axes = picture.subplots(2, 3, width_ratios=(1, 1.1, 1.1))
    real = measured_times(log)
    rows = (
        (settings, INK, f"{settings.num_kv_blocks} KV blocks, as the engine has"),
        (mistaken, TOO_HIGH, f"{mistaken.num_kv_blocks} KV blocks, by mistake"),
    )
    for row, (config, colour, label) in zip(axes, rows, strict=True):
        _each_request(row[0], real, rerun(log, latency, config=config), colour, label)
        result = autopsy(log, config, latency)
        waterfall(row[1], result, "TTFT", "mean")
        waterfall(row[2], result, "E2E", "mean")
        row[2].tick_params(labelleft=False)
    sign(picture, "a recorded run of tiny-ar on a CPU · scheduler fcfs · step times fitted (tiny-profile)")
    return picture


def _each_request(axes: Axes, real: TokenTimes, predicted: TokenTimes, colour: str, label: str) -> None:
    """TTFT, predicted over measured, with a band of 10 % either side."""
    _, ours, theirs = np.intersect1d(real.request_id, predicted.request_id, return_indices=True)
    scatter(axes, real.ttft_s[ours] * 1e3, predicted.ttft_s[theirs] * 1e3, colour, narrow=True)
    axes.set(xlabel="TTFT measured", ylabel="TTFT predicted")
    axes.set_title(label)
