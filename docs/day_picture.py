"""The picture of the guide to a day of traffic: what comes, what waits, and how long, hour by hour."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import blis_py as blis
from blis_py.figures.axes import time_axis
from blis_py.figures.style import BLUE, SKY, VERMILLION, Picture, grid, in_house_style, legend_beside_title

GUIDE = Path(__file__).resolve().parent / "a-day.md"
SETTINGS: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "l40s"}
DAY_S = 86_400
INSTANCES = {1: VERMILLION, 2: BLUE}


def days() -> dict[int, blis.Result]:
    """The day of the guide, by the number of instances."""
    text = re.search(r"```yaml day.yaml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert text is not None
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "day.yaml").write_text(text[1])
        spec = f"{folder}/day.yaml"
        return {n: blis.run(workload_spec=spec, num_instances=n, **SETTINGS) for n in INSTANCES}


@in_house_style
def figure() -> Picture:
    """Requests that come, requests that wait for their first token, and how long that takes."""
    runs = days()
    foot = "docs/a-day.md: llama-3.1-8b on L40S, vLLM, one day of 20 users and a nightly report"
    drawing, (coming, waiting, latency) = grid(3, 1, height=6.4, gap=0.45, foot=foot)
    frames = {count: run.requests for count, run in runs.items()}
    hours = np.arange(25)
    for client, colour in (("office", BLUE), ("reports", SKY)):
        own = frames[1].client.astype(str).str.startswith(client)
        counts, _ = np.histogram(frames[1].arrival_s[own] / 3600, hours)
        coming.stairs(counts / 3600, hours, color=colour, label=client, linewidth=1.6)
    moments = np.arange(0, DAY_S, 60)
    for count, frame in frames.items():
        style: dict[str, Any] = {"color": INSTANCES[count], "label": f"{count} instance{'s' * (count > 1)}"}
        first = np.sort((frame.arrival_s + frame.ttft_ms / 1e3).fillna(np.inf))
        came = np.searchsorted(np.sort(frame.arrival_s), moments)
        waiting.plot(moments / 3600, came - np.searchsorted(first, moments), **style)
        by_hour = (frame.ttft_ms / 1e3).groupby((frame.arrival_s // 3600).astype(int))
        latency.stairs(by_hour.quantile(0.99).reindex(range(24)), hours, baseline=None, **style)
    coming.set_title("Requests/s that come")
    coming.set_ylim(bottom=0)
    waiting.set_title("Requests that wait for their first token")
    waiting.set_ylim(bottom=0)
    latency.set_title("p99 of TTFT by the hour of arrival, s")
    latency.set_yscale("log")
    latency.yaxis.set_major_formatter("{x:g}")
    for axes in (coming, waiting, latency):
        time_axis(axes, DAY_S)
        legend_beside_title(axes)
        axes.label_outer()
    return drawing
