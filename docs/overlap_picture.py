"""The pictures of the guide to asynchronous scheduling: recorded steps as a pipeline, and simulated load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import blis_py as blis
from blis_py.figures.style import BLUE, FAINT, QUIET, VERMILLION, Picture, in_house_style, sign
from blis_py.traces.steplog import StepLog, read_step_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RECORDED = Path(__file__).resolve().parent / "recorded"
LOOPS = ("synchronous", "overlapped")
SHADES = (BLUE, VERMILLION)
"""Of steps with an even and an odd number."""
WAITING = FAINT
FIRST, STEPS = 36, 4
"""The steps shown: all of them decodes."""
LANES = ("CPU-S", "CPU-L", "device")

H100: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "latency_model": "trained",
    "prompt_tokens": 512,
    "output_tokens": 128,
    "num_requests": 1000,
}
TINY: dict[str, Any] = {
    "profile": str(RECORDED / "tiny-profile"),
    "num_kv_blocks": 1024,
    "max_num_seqs": 32,
    "prompt_tokens": 100,
    "prompt_tokens_max": 150,
    "output_tokens": 32,
    "output_tokens_max": 64,
    "num_requests": 1000,
}
RATES = {"H100": (1, 5, 10, 20, 30, 40, 60), "tiny": (5, 10, 20, 30, 40, 45, 50, 55, 80)}
Bar = tuple[str, float, float, str]
"""Lane, beginning and end in ns, and colour."""


@in_house_style
def pipeline() -> Picture:
    """Who does what when: the scheduling side, the launching side and the device, in either loop.

    Blue and orange are steps in turn, grey is waiting. In the synchronous loop on a CPU the launching side
    computes itself.
    """
    logs = {loop: read_step_log(RECORDED / "overlap" / f"{loop}.csv.gz") for loop in LOOPS}
    figure = Picture(figsize=(11, 5.2), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    for axes, (loop, log) in zip(panels, logs.items(), strict=True):
        bars = _overlapped_bars(log) if "seen_ns" in log.steps else _synchronous_bars(log)
        _draw(axes, bars, log)
        axes.set_title(loop, loc="left", fontsize=11)
    panels[-1].set_xlabel("ms")
    sign(figure, "recorded: 16 requests decode on the tiny engine, tiny-ar on a CPU · scheduler fcfs")
    return figure


def _synchronous_bars(log: StepLog) -> list[Bar]:
    bars: list[Bar] = []
    for step in range(FIRST, FIRST + STEPS):
        row, shade = _row(log, step), SHADES[step % 2]
        ready = row["start_ns"] + row["schedule_ns"] + row["prepare_ns"]
        done = ready + row["launch_ns"] + row["sample_ns"]
        bars += [
            ("CPU-S", row["start_ns"], ready, shade),
            ("CPU-L", ready, done, WAITING),
            ("device", ready, ready + row["gpu_ns"], shade),
            ("CPU-S", done, row["end_ns"], shade),
        ]
    return bars


def _overlapped_bars(log: StepLog) -> list[Bar]:
    bars: list[Bar] = []
    for step in range(FIRST - 1, FIRST + STEPS + 1):
        row, shade = _row(log, step), SHADES[step % 2]
        ready = row["start_ns"] + row["schedule_ns"] + row["prepare_ns"]
        arrived = row["end_ns"] - row["finish_ns"]
        bars += [
            ("CPU-S", arrived - row["sample_ns"], arrived, WAITING),
            ("CPU-S", row["start_ns"], ready, shade),
            ("CPU-L", ready, ready + row["launch_ns"], shade),
            ("device", row["forward_start_ns"], row["forward_end_ns"], shade),
            ("CPU-S", arrived, row["end_ns"], shade),
        ]
    return bars


def _row(log: StepLog, step: int) -> dict[str, float]:
    return {name: float(column[step]) for name, column in log.steps.items() if name.endswith("_ns")}


def _draw(axes: Axes, bars: list[Bar], log: StepLog) -> None:
    """From the moment at which the device begins with the first step shown."""
    origin = next(begin for lane, begin, *_ in bars if lane == "device")
    number, until_ms = FIRST, 14.0
    if "seen_ns" in log.steps:  # the bars begin with the step before
        origin, number = _row(log, FIRST)["forward_start_ns"], FIRST - 1
    for lane, begin, end, colour in bars:
        left, right = (begin - origin) / 1e6, (end - origin) / 1e6
        axes.barh(LANES.index(lane), right - left, left=left, height=0.7, color=colour, linewidth=0)
        middle = (max(left, 0) + min(right, until_ms)) / 2
        if lane == "device":
            if 0.4 < middle < until_ms - 0.4:
                axes.text(middle, 2, f"step {number}", ha="center", va="center", color="white", fontsize=9)
            number += 1
        elif colour == WAITING and 0.4 < middle < until_ms - 0.4:
            at = (middle, LANES.index(lane))
            axes.text(*at, "waits", ha="center", va="center", color=QUIET, fontsize=8)
    axes.set_yticks(range(len(LANES)), LANES)
    axes.invert_yaxis()
    axes.set_xlim(-0.3, until_ms)
    axes.grid(visible=False)


@in_house_style
def load() -> Picture:
    """TTFT, TPOT and throughput over the rate of requests, in either loop."""
    figure = Picture(figsize=(12, 6.2), layout="constrained")
    grid = figure.subplots(2, 3)
    cases = (("H100", H100, "Llama 3.1 8B, H100: nothing hidden"), ("tiny", TINY, "tiny engine: host hidden"))
    for row, (name, settings, title) in zip(grid, cases, strict=True):
        for asynchronous, colour in zip((False, True), SHADES, strict=True):
            points = np.array([measured(settings, rate, asynchronous) for rate in RATES[name]])
            for axes, column in zip(row, points.T, strict=True):
                label = LOOPS[asynchronous]
                axes.plot(RATES[name], column, marker="o", markersize=3, color=colour, label=label)
        for axes, what in zip(
            row, ("mean TTFT (ms)", "mean TPOT (ms)", "output tokens a second"), strict=True
        ):
            axes.set_ylabel(what)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("requests a second")
        row[0].set_yscale("log")
        row[0].set_ylim(10, 5000)
        row[0].set_title(title, loc="left", fontsize=11)
        row[0].legend(frameon=False, fontsize=9)
    above = "above: 512 in / 128 out, engine blis, step times trained"
    below = "below: 100 in / 32 out, engine blis, step times fitted (tiny-profile)"
    sign(figure, f"{above} · {below} · 1 instance, scheduler fcfs")
    return figure


def measured(settings: dict[str, Any], rate: float, asynchronous: bool) -> tuple[float, float, float]:
    """Mean TTFT and TPOT in ms, and output tokens a second."""
    result = blis.run(engine="blis", rate=rate, seed=1, async_scheduling=asynchronous, **settings)
    cluster = result.summary["cluster"]
    tokens: float = cluster["throughput"]["output_tokens_per_s"]
    return cluster["ttft_ms"]["mean"], cluster["tpot_ms"]["mean"], tokens
