"""The picture of the guide to trust: what real engines took, predicted against measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.figures import style
from blis_py.figures.axes import in_words
from blis_py.figures.style import (
    Picture,
    grid,
    in_house_style,
    legend_above,
    legend_room,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "real_engines.json"
RECORDED = {
    "five H100 runs": ("five runs in 16 bits on H100, each left out", style.VERMILLION, "o"),
    "two RTX runs": ("two runs on RTX cards, kernel-tables", style.GREEN, "s"),
}
LOOPS = {
    ("qwen3-32b", "h100", 4): ("Qwen3-32B in 16 bits, H100 TP4", style.INK, "p"),
    ("llama-3.1-70b FP8", "h100", 4): ("Llama-3.1-70B FP8, H100 TP4", style.ORANGE, "^"),
    ("llama-3.1-70b FP8", "h200", 1): ("Llama-3.1-70B FP8, H200 TP1", style.SKY, "v"),
    ("llama-3.1-70b FP8", "h200", 4): ("Llama-3.1-70B FP8, H200 TP4", style.BLUE, "D"),
    ("llama-3.1-70b FP8", "b200", 1): ("Llama-3.1-70B FP8, B200 TP1", style.PURPLE, "P"),
    ("llama-3.1-70b FP8", "b200", 4): ("Llama-3.1-70B FP8, B200 TP4", style.EARTH, "X"),
}
"""Closed loops by model, GPU and TP degree; points that contradict each other are not among them."""
LIMITS_MS = {"TTFT": (20, 200_000), "TPOT": (7, 200)}
LABELLED = {"TTFT": (1.0,), "TPOT": (1.0, 2.0, 5.0)}
ERRORS = {"TTFT": (-0.6, -0.4, -0.2, 0, 0.2, 0.4), "TPOT": (-0.2, -0.1, 0, 0.1, 0.2)}
"""Labelled below, where the axis goes on to `ERROR_LIMITS`."""
ERROR_LIMITS = {"TTFT": (-0.7, 0.5), "TPOT": (-0.25, 0.3)}
FOOT = (
    "Filled: means; hollow: p99. Named by model and GPU: closed loops, by trained. The TPOT of Qwen3-32B is "
    "no test, as host time was learned on it. Not drawn: 14 points that contradict each other, and one that "
    "stands alone. From benchmarks/results/real_engines.json."
)

BAND: dict[str, Any] = {"color": style.GREY, "alpha": 0.28, "lw": 0}

Row = dict[str, Any]


@in_house_style
def figure() -> Picture:
    """TTFT and TPOT of recorded runs and closed loops: predicted and, below, the error over measured."""
    rows = [row for row in json.loads(RESULTS.read_text(encoding="utf-8")) if _is_drawn(row)]
    looks = [*RECORDED.values(), *LOOPS.values()]
    above = legend_room(len(looks), columns=3)
    picture, axes = grid(2, 2, height=7.6 + above, foot=FOOT, above=above, left=0.85, beside=0.95)
    for metric, times, errors in zip(LIMITS_MS, axes[:2], axes[2:], strict=True):
        _times(times, metric)
        _errors(errors, metric)
        for look in looks:
            of = [row for row in rows if row["metric"] == metric and _look(row) == look]
            _points(times, of, lambda row: row["predicted"], *look)
            _points(errors, of, lambda row: row["predicted"] / row["measured"], *look)
    legend_above(picture, axes[:1], from_top=0.12, columns=3)
    return picture


def _is_drawn(row: Row) -> bool:
    if row["truth"] in RECORDED:
        return True
    return row["prices"] == "trained" and (row["model"], row["gpu"], row["tp"]) in LOOPS


def _look(row: Row) -> tuple[str, str, str]:
    return RECORDED.get(row["truth"]) or LOOPS[row["model"], row["gpu"], row["tp"]]


def _times(ax: Axes, metric: str) -> None:
    """Predicted over measured, with the diagonal and the band."""
    limits = np.array(LIMITS_MS[metric])
    ax.fill_between(limits, 0.9 * limits, 1.1 * limits, **BAND)
    ax.plot(limits, limits, color=style.QUIET, lw=1)
    ax.set(yscale="log", ylim=limits, ylabel="predicted", title=f"{metric}; grey: ±10 %")
    _in_words(ax.yaxis, metric)
    _measured(ax, metric)


def _errors(ax: Axes, metric: str) -> None:
    """Predicted by measured, written as what is too much or too little."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    ax.axhspan(0.9, 1.1, **BAND)
    ax.axhline(1, color=style.QUIET, lw=1)
    errors = ERRORS[metric]
    ax.set(yscale="log", ylabel="error", ylim=[1 + limit for limit in ERROR_LIMITS[metric]])
    ax.yaxis.set_major_locator(FixedLocator([1 + error for error in errors]))
    ax.yaxis.set_major_formatter(FixedFormatter([f"{error:+.0%}" if error else "0" for error in errors]))
    ax.yaxis.set_minor_locator(NullLocator())
    _measured(ax, metric)


def _measured(ax: Axes, metric: str) -> None:
    ax.set(xscale="log", xlim=LIMITS_MS[metric], xlabel="measured")
    _in_words(ax.xaxis, metric)


def _in_words(axis: Axis, metric: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=LABELLED[metric]))
    axis.set_major_formatter(FuncFormatter(lambda ms, _: in_words(ms)))
    axis.set_minor_formatter(NullFormatter())


def _points(
    ax: Axes, rows: list[Row], height: Callable[[Row], float], label: str, colour: str, marker: str
) -> None:
    for statistic, face in (("mean", colour), ("p99", "white")):
        of = [row for row in rows if row["statistic"] == statistic]
        look: Any = {"mfc": face, "mec": colour, "mew": 1.1, "ms": 5.5, "alpha": 0.85, "ls": "none"}
        name = label if statistic == "mean" else None
        ax.plot([row["measured"] for row in of], [height(row) for row in of], marker, label=name, **look)
