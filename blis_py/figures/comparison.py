"""Comparison of runs of the same requests: their latencies, and the change by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.figures.axes import latency_axis
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

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Told = Mapping[str, Any]

_METRICS = {"ttft_ms": "Time to first token", "tpot_ms": "Time per output token", "e2e_ms": "End to end"}
_MEANS = {"ttft_ms": "Mean TTFT", "e2e_ms": "Mean E2E: who paid"}
_MAX_GROUPS = 22


@in_house_style
def comparison(told: Told, frames: Sequence[pd.DataFrame], settings: Told) -> Picture:
    """Distributions of all runs, and the difference between the last and the first by group.

    Args:
        `told`: `Comparison.as_dict()`.
        frames: the paired requests of every run.
        settings: the configuration of the first run.
    """
    last = told["compared"][-1]
    shown = [last["everybody"], *last["groups"]][:_MAX_GROUPS]
    room = legend_room(len(frames), 3)
    tall = 0.24 * max(len(shown), 4) + 0.9
    varied = [row["key"] for row in told["settings"]]
    foot = foot_of_several(_without(settings, varied), varied)
    figure, axes = grid(1, 5, height=max(3.4, tall + 0.9) + room, foot=foot, above=0.4 + room, beside=0.6)
    headline(figure, f"{last['run']} beside {told['runs'][0]}: the same requests")
    _place(figure, axes, tall)
    for ax, metric in zip(axes[:3], _METRICS, strict=True):
        _draw_latencies(ax, metric, told["runs"], frames)
    for ax, metric in zip(axes[3:], _MEANS, strict=True):
        _draw_groups(ax, metric, shown)
    axes[4].set_yticks(axes[3].get_yticks(), ["" for _ in axes[3].get_yticks()])
    legend_above(figure, axes[0], from_top=0.4, columns=3)
    return figure


def _without(settings: Told, varied: Sequence[str], inside: str = "") -> dict[str, Any]:
    """Settings common to all runs."""
    return {
        key: _without(value, varied, f"{inside}{key}.") if isinstance(value, Mapping) else value
        for key, value in settings.items()
        if f"{inside}{key}" not in varied
    }


def _place(figure: Picture, axes: Sequence[Axes], tall: float) -> None:
    """Arrange three distributions side by side in the left half; stacked they would be too small."""
    wide, high = figure.get_size_inches()
    box = axes[0].get_position()
    bottom, top = box.y0, box.y1
    each = (top - bottom - 2 * 0.62 / high) / 3
    for row, ax in enumerate(axes[:3]):
        low = top - each * (row + 1) - row * 0.62 / high
        ax.set_position((0.68 / wide, low, 3.6 / wide, each))
    for column, ax in enumerate(axes[3:]):
        ax.set_position(((6.35 + 1.78 * column) / wide, bottom, 1.6 / wide, top - bottom))


def _draw_latencies(ax: Axes, metric: str, names: Sequence[str], frames: Sequence[pd.DataFrame]) -> None:
    extent: list[float] = []
    for index, (name, frame) in enumerate(zip(names, frames, strict=True)):
        values = np.sort(frame[metric].dropna().to_numpy(dtype=float)) if len(frame) else np.zeros(0)
        if not len(values):
            continue
        look = {key: value for key, value in series_lines(index).items() if key != "marker"}
        if index:
            look["linestyle"] = (0, (5, 1.5))
        ax.step(
            values, 100 * np.arange(1, len(values) + 1) / len(values), where="post", label=label(name), **look
        )
        extent += [float(values[0]), float(values[-1])]
    ax.set_title(_METRICS[metric])
    if not extent:
        say(ax, "No request has one in both runs.")
        return
    latency_axis(ax, extent, text="")
    ax.set_ylim(0, 101)
    ax.set_yticks([0, 50, 90])
    ax.set_ylabel("% of requests")


def _draw_groups(ax: Axes, metric: str, groups: Sequence[Told]) -> None:
    """Mean change of each group, with its interval."""
    ax.set_title(_MEANS[metric])
    known = [group.get(metric) for group in groups]
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
