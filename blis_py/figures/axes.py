"""Axes of latencies, of simulated time and of counts, with few, non-overlapping labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blis_py.figures._matplotlib import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from blis_py.figures.style import INK
from blis_py.metrics.registry import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_LOG_FROM = 30.0
"""Ratio of largest to smallest value beyond which an axis is logarithmic."""


def latency_axis(ax: Axes, extent_ms: Sequence[float], along: str = "x", text: str = "latency") -> None:
    """Scale and label a latency axis: logarithmic beyond a decade and a half, in the most readable unit."""
    axis: Axis = ax.xaxis if along == "x" else ax.yaxis
    low, high = (min(extent_ms), max(extent_ms)) if len(extent_ms) else (0.0, 0.0)
    if low > 0 and high / low > _LOG_FROM:
        _logarithmic(ax, axis, along, high / low)
    else:
        ax.set_xlim(left=0) if along == "x" else ax.set_ylim(bottom=0)
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda ms, _: in_words(ms)))
    axis.set_label_text(text)


def metric_axis(
    ax: Axes, metric: Metric, extent: Sequence[float], along: str = "x", text: str = "latency"
) -> None:
    """Scale and label the axis of a metric; of a time as `latency_axis` does, else with its unit."""
    if metric.unit.is_time:
        latency_axis(ax, extent, along, text)
        return
    rate_axis(ax, along)
    (ax.set_xlabel if along == "x" else ax.set_ylabel)(metric.heading())


def _logarithmic(ax: Axes, axis: Axis, along: str, span: float) -> None:
    ax.set_xscale("log") if along == "x" else ax.set_yscale("log")
    # As many labels as fit side by side when two columns share the width.
    labelled = (1.0, 2.0, 5.0) if span < 50 else (1.0, 3.0) if span < 300 else (1.0,)
    axis.set_major_locator(LogLocator(subs=labelled, numticks=5))
    axis.set_minor_locator(LogLocator(subs=range(2, 10)))
    axis.set_minor_formatter(NullFormatter())


def in_words(ms: float) -> str:
    """A time in the most readable unit."""
    if ms >= 1000:
        return f"{ms / 1000:,.9g} s"
    if ms >= 1:
        return f"{ms:g} ms"
    return f"{ms * 1000:g} µs" if ms > 0 else "0"


def time_unit(until_s: float) -> tuple[str, float]:
    """The time unit for a run of this length, and its seconds."""
    return ("s", 1.0) if until_s < 300 else ("min", 60.0) if until_s < 3 * 3600 else ("h", 3600.0)


def time_axis(ax: Axes, until_s: float) -> None:
    """Scale and label an axis of simulated time from 0 to the end of the run."""
    unit, seconds = time_unit(until_s)
    ax.set_xlim(0, until_s / seconds)
    ax.set_xlabel(f"simulated time, {unit}")


def count_axis(ax: Axes) -> None:
    """Scale an axis of whole numbers, from zero to at least one."""
    ax.set_ylim(0, max(1.0, ax.get_ylim()[1]))
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))


def rate_axis(ax: Axes, along: str = "y") -> None:
    """Scale an axis from zero, with commas between thousands."""
    axis: Axis = ax.xaxis if along == "x" else ax.yaxis
    ax.set_xlim(left=0) if along == "x" else ax.set_ylim(bottom=0)
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def limit_line(ax: Axes, value: float, text: str, along: str = "x", colour: str = INK, row: int = 0) -> None:
    """Draw a labelled line at an upper limit; `row` keeps several labels apart."""
    line: Any = {"color": colour, "linewidth": 1.1, "linestyle": (0, (3, 2)), "zorder": 1.5}
    note: Any = {"size": 8, "color": colour, "parse_math": False}
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.4}
    if along == "x":
        ax.axvline(value, **line)
        where: Any = {"xytext": (3, 4 + 12 * row), "textcoords": "offset points", "va": "bottom"}
        ax.annotate(text, (value, 0), xycoords=("data", "axes fraction"), bbox=box, **where, **note)
    else:
        ax.axhline(value, **line)
        where = {"xytext": (-4 - 110 * row, 2), "textcoords": "offset points", "ha": "right"}
        ax.annotate(text, (1, value), xycoords=("axes fraction", "data"), bbox=box, **where, **note)
