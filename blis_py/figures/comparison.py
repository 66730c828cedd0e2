"""Comparison of runs of the same requests: their latencies, and the change by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.figures.axes import metric_axis
from blis_py.figures.facts import foot_of_several
from blis_py.figures.style import (
    BLUE,
    GREY,
    INK,
    QUIET,
    VERMILLION,
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
_TITLE = 138
"""Characters of a title that fit into the width of a figure."""


@in_house_style
def comparison(data: Data, frames: Sequence[pd.DataFrame], settings: Data) -> Picture:
    """Distributions of all runs, and the difference between the last and the first by group.

    Args:
        `data`: `Comparison.as_dict()`.
        frames: the paired requests of every run.
        settings: the configuration of the first run.
    """
    last = data["compared"][-1]
    shown = [last["everybody"], *last["groups"]][:_MAX_GROUPS]
    room = legend_room(len(frames), 3)
    tall = 0.24 * max(len(shown), 4) + 0.9
    varied = [row["key"] for row in data["settings"]]
    foot = foot_of_several(_without(settings, varied), varied)
    latencies = [each for each in paired() if each.shown.distributions]
    means = [each for each, _ in shown_in("compared")]
    count = len(latencies)
    figure, axes = grid(
        *(1, count + len(means)),
        height=max(3.4 + 1.5 * max(0, count - 3), tall + 0.9) + room,
        foot=foot,
        above=0.4 + room,
        beside=0.6,
    )
    headline(figure, f"{last['run']} beside {data['runs'][0]}: the same requests")
    _place(figure, axes[:count], axes[count:])
    for ax, metric in zip(axes[:count], latencies, strict=True):
        _draw_latencies(ax, metric, data["runs"], frames)
    for ax, metric in zip(axes[count:], means, strict=True):
        _draw_groups(ax, metric, shown)
    for ax in axes[count + 1 :]:
        ax.set_yticks(ax.get_yticks(), ["" for _ in ax.get_yticks()])
    legend_above(figure, axes[0], from_top=0.4, columns=3)
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
    for index, (name, frame) in enumerate(zip(names, frames, strict=True)):
        values = (
            np.sort(frame[metric.key].dropna().to_numpy(dtype=float)) if metric.key in frame else np.zeros(0)
        )
        if not len(values):
            continue
        look = {key: value for key, value in series_lines(index).items() if key != "marker"}
        if index:
            look["linestyle"] = (0, (5, 1.5))
        ax.step(
            values, 100 * np.arange(1, len(values) + 1) / len(values), where="post", label=label(name), **look
        )
        extent += [float(values[0]), float(values[-1])]
    ax.set_title(metric.plain_title)
    if not extent:
        say(ax, "No request has one in both runs.")
        return
    metric_axis(ax, metric, extent, text="")
    ax.set_ylim(0, 101)
    ax.set_yticks([0, 50, 90])
    ax.set_ylabel("% of requests")


def _draw_groups(ax: Axes, metric: Metric, groups: Sequence[Data]) -> None:
    """Mean change of each group, with its interval."""
    title = f"Mean {metric.label}{': who paid' if metric is E2E else ''}"
    ax.set_title(fill(title, width=max(10, round(_TITLE * ax.get_position().width))))
    known = [group.get(metric.key) for group in groups]
    if not any(change and change["relative"] is not None for change in known):
        say(ax, "No request has one in both runs.")
        return
    for row, change in enumerate(known):
        if not change or change["relative"] is None:
            continue
        middle = 100 * change["relative"]
        colour = GREY if not change["sure"] else BLUE if middle < 0 else VERMILLION
        if change["interval"] is not None:
            low, high = (100 * end for end in change["interval"])
            ax.plot([low, high], [row, row], color=colour, linewidth=3, alpha=0.5, solid_capstyle="butt")
        ax.plot([middle], [row], marker="o", color=colour, markersize=5)
    ax.axvline(0, color=INK, linewidth=0.8)
    ax.set_yticks(
        range(len(groups)), [f"{label(group['name'])} ({group['requests']:,})" for group in groups], size=8
    )
    ax.set_ylim(len(groups) - 0.4, -0.6)
    ax.grid(visible=False, axis="y")
    ax.locator_params(axis="x", nbins=4)
    ax.tick_params(axis="x", labelsize=8)
    ax.set_xlabel("change, %", size=8, color=QUIET)
