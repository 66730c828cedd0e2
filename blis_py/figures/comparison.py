"""Comparison of runs of the same requests: their latencies, and the change by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.figures._matplotlib import NullLocator
from blis_py.figures.axes import metric_axis
from blis_py.figures.facts import foot_of_several
from blis_py.figures.style import (
    INK,
    QUIET,
    Picture,
    grid,
    headline,
    in_house_style,
    label,
    legend_above,
    legend_room,
    say,
    series_lines,
)
from blis_py.metrics.registry import E2E, Metric, paired, shown_in

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Data = Mapping[str, Any]

_MAX_GROUPS = 22
_TAIL = (
    *((0.5, "p50"), (0.1, "p90"), (0.01, "p99")),
    *((0.001, "p99.9"), (0.0001, "p99.99")),
)
"""Shares of slower requests, and their names."""
_TITLE = 138
"""Characters of a title that fit into the width of a figure."""


@in_house_style
def comparison(data: Data, frames: Sequence[pd.DataFrame], settings: Data) -> Picture:
    """Distributions of all runs down to the tail, and the difference of each to the first by group.

    Args:
        `data`: `Comparison.as_dict()`.
        frames: the paired requests of every run.
        settings: the configuration of the first run.
    """
    shown = [
        [each["everybody"], *each["groups"]][:_MAX_GROUPS] for each in data["compared"] if each["metrics"]
    ]
    room = legend_room(len(frames), 3)
    rows = max((len(groups) for groups in shown), default=0)
    tall = (0.16 + 0.08 * max(len(shown), 1)) * max(rows, 4) + 0.9
    varied = [row["key"] for row in data["settings"]]
    foot = foot_of_several(_without(settings, varied), varied)
    latencies = [each for each in paired() if each.shown.distributions]
    means = [each for each, _ in shown_in("compared")]
    count = len(latencies)
    figure, axes = grid(
        *(1, count + len(means)),
        height=max(1.0 + 1.5 * count, tall + 0.9) + room,
        foot=foot,
        above=0.4 + room,
        beside=0.6,
    )
    others = ", ".join(each["run"] for each in data["compared"])
    headline(figure, f"{others} compared with {data['runs'][0]}; hollow: the change could be chance")
    _place(figure, axes[:count], axes[count:])
    for ax, metric in zip(axes[:count], latencies, strict=True):
        _draw_latencies(ax, metric, data["runs"], frames)
    for ax, metric in zip(axes[count:], means, strict=True):
        _draw_groups(ax, metric, shown)
    for ax in axes[count + 1 :]:
        ax.set_yticks(ax.get_yticks(), ["" for _ in ax.get_yticks()])
    legend_above(figure, axes[:count], from_top=0.4, columns=3)
    return figure


def _without(settings: Data, varied: Sequence[str], inside: str = "") -> dict[str, Any]:
    """Settings common to all runs."""
    return {
        key: _without(value, varied, f"{inside}{key}.") if isinstance(value, Mapping) else value
        for key, value in settings.items()
        if f"{inside}{key}" not in varied
    }


def _place(figure: Picture, latencies: Sequence[Axes], means: Sequence[Axes]) -> None:
    """Arrange the distributions one below the other in the left half, the mean changes in the right one."""
    wide, high = figure.get_size_inches()
    box = latencies[0].get_position()
    bottom, top = box.y0, box.y1
    each = (top - bottom - (len(latencies) - 1) * 0.62 / high) / len(latencies)
    wide_mean = (0.18 + 1.78 * 2) / len(means) - 0.18
    for row, ax in enumerate(latencies):
        low = top - each * (row + 1) - row * 0.62 / high
        ax.set_position((0.68 / wide, low, 3.6 / wide, each))
    for column, ax in enumerate(means):
        left = 6.35 + (wide_mean + 0.18) * column
        ax.set_position((left / wide, bottom, wide_mean / wide, top - bottom))


def _draw_latencies(ax: Axes, metric: Metric, names: Sequence[str], frames: Sequence[pd.DataFrame]) -> None:
    extent: list[float] = []
    least = 1.0
    for index, (name, frame) in enumerate(zip(names, frames, strict=True)):
        values = (
            np.sort(frame[metric.key].dropna().to_numpy(dtype=float)) if metric.key in frame else np.zeros(0)
        )
        if not len(values):
            continue
        look = _line(index, len(names))
        slower = 1 - np.arange(len(values)) / len(values)
        ax.step(values, slower, where="post", label=label(name), **look)
        least = min(least, float(slower[-1]))
        extent += [float(values[0]), float(values[-1])]
    ax.set_title(metric.plain_title)
    if not extent:
        say(ax, "No request has one in both runs.")
        return
    metric_axis(ax, metric, extent, text="")
    ax.set_yscale("log")
    ax.set_ylim(1.05, least)
    ticks = [tick for tick in _TAIL if tick[0] >= least]
    ax.set_yticks([share for share, _ in ticks], [text for _, text in ticks])
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_ylabel("percentile")


def _line(run: int, runs: int) -> dict[str, Any]:
    """Look of a run's line: the first wide and pale, later ones thinner, so that equal lines all show."""
    look = {key: value for key, value in series_lines(run).items() if key != "marker"}
    if not run:
        return look | {"linewidth": 4.5, "alpha": 0.45}
    return look | {"linewidth": 2.6 - 1.4 * (run - 1) / max(runs - 2, 1), "linestyle": (0, (5, 1.5))}


def _draw_groups(ax: Axes, metric: Metric, shown: Sequence[Sequence[Data]]) -> None:
    """Mean change of each group with its interval, a row for every run within a group; hollow: not sure.

    The axis covers the changes; an interval that is much longer goes over its edge.
    """
    title = f"Mean {metric.label}{': who paid' if metric is E2E else ''}"
    ax.set_title(fill(title, width=max(10, round(_TITLE * ax.get_position().width))))
    points = [
        (row + (run - (len(shown) - 1) / 2) * 0.7 / len(shown), run, change)
        for run, groups in enumerate(shown)
        for row, group in enumerate(groups)
        if (change := group.get(metric.key)) and change["relative"] is not None
    ]
    if not points:
        say(ax, "No request has one in both runs.")
        return
    for place, run, change in points:
        middle = 100 * change["relative"]
        colour = str(series_lines(run + 1)["color"])
        if change["interval"] is not None:
            low, high = (100 * end for end in change["interval"])
            ax.plot([low, high], [place] * 2, color=colour, linewidth=3, alpha=0.5, solid_capstyle="butt")
        face = colour if change["sure"] else "white"
        ax.plot([middle], [place], marker="o", color=colour, markersize=5, markerfacecolor=face)
    ax.axvline(0, color=INK, linewidth=0.8)
    groups = max(shown, key=len)
    ax.set_yticks(range(len(groups)), [_group_label(group) for group in groups], size=8)
    ax.set_ylim(len(groups) - 0.4, -0.6)
    ax.set_xlim(*_extent([change for _, _, change in points]))
    ax.grid(visible=False, axis="y")
    ax.locator_params(axis="x", nbins=4)
    ax.tick_params(axis="x", labelsize=8)
    ax.set_xlabel("change, %", size=8, color=QUIET)


def _group_label(group: Data) -> str:
    name = label(group["name"])
    if group["by"] == "prompt":
        name = f"prompt {name.removesuffix(' tokens')}"
    return f"{name} ({group['requests']:,})"


def _extent(changes: Sequence[Data]) -> tuple[float, float]:
    """Limits of the axis, in per cent: all changes, and of the intervals as much as leaves these readable."""
    middles = [100 * each["relative"] for each in changes]
    low, high = min(*middles, 0.0), max(*middles, 0.0)
    room = max(high - low, 5.0)
    ends = [100 * end for each in changes if each["interval"] is not None for end in each["interval"]]
    far_low, far_high = min(*ends, low, 0.0), max(*ends, high, 0.0)
    return max(far_low, low - room / 2) - 0.04 * room, min(far_high, high + room / 2) + 0.04 * room
