"""Heat maps of every instance over time, showing full and idle phases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blis_py.figures.axes import time_axis, time_unit
from blis_py.figures.facts import foot
from blis_py.figures.run import RunView
from blis_py.figures.style import SEQUENTIAL, WIDTH, Picture, grid, in_house_style
from blis_py.figures.timeline import Floats, timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SLICES = 200
_MOST_LABELS = 12


@in_house_style
def instances(run: RunView) -> Picture | None:
    """Running and waiting requests and KV use, a row for each instance; `None` without recorded steps."""
    state = timeline(run, _SLICES)
    if state is None:
        return None
    panel = min(2.6, max(0.7, 0.16 * len(state.running)))
    figure, axes = grid(3, 1, height=1.9 + 3 * panel, gap=0.5, right=1.1, foot=foot(run.config))
    _draw_map(axes[0], state.running, run.end_s, "Running requests")
    _draw_map(axes[1], state.waiting, run.end_s, "Waiting requests")
    _draw_map(axes[2], state.kv_pct, run.end_s, "KV cache in use, %", most=100.0)
    for ax in axes:
        time_axis(ax, run.end_s)
        ax.label_outer()
    return figure


def _draw_map(ax: Axes, rows: Floats, end_s: float, title: str, most: float | None = None) -> None:
    """Heat map with one row per instance, and a colour scale on the right."""
    unit = time_unit(end_s)[1]
    top = most or max(1.0, float(rows.max()))
    image = ax.imshow(
        rows,
        aspect="auto",
        interpolation="nearest",
        cmap=SEQUENTIAL,
        vmin=0,
        vmax=top,
        extent=(0, end_s / unit, len(rows) - 0.5, -0.5),
    )
    ax.set_title(title)
    ax.set_ylabel("instance")
    ax.grid(visible=False)
    every = -(-len(rows) // _MOST_LABELS)
    ax.set_yticks(np.arange(0, len(rows), every))
    place = ax.get_position()
    beside = ax.figure.add_axes((place.x1 + 0.15 / WIDTH, place.y0, 0.14 / WIDTH, place.height))
    bar = ax.figure.colorbar(image, cax=beside)
    bar.outline.set_visible(False)
    bar.ax.locator_params(nbins=3)
    beside.grid(visible=False)
