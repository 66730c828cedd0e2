"""Heat maps of every instance over time, showing full and idle phases."""

from __future__ import annotations

from collections.abc import Sequence
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
_MAX_LABELS = 12


@in_house_style
def instances(run: RunView) -> Picture | None:
    """Running and waiting requests and KV use, a row for each instance; `None` without recorded steps."""
    state = timeline(run, _SLICES)
    if state is None:
        return None
    panel = min(2.6, max(0.7, 0.16 * len(state.running)))
    left = max([0.68, *(0.25 + 0.08 * len(pool) for pool in state.pools)])
    figure, axes = grid(3, 1, height=1.9 + 3 * panel, gap=0.5, left=left, right=1.1, foot=foot(run.config))
    _draw_map(axes[0], state.running, run.end_s, "Running requests")
    _draw_map(axes[1], state.waiting, run.end_s, "Waiting requests")
    _draw_map(axes[2], state.kv_pct, run.end_s, "KV cache in use, %", most=100.0)
    for ax in axes:
        time_axis(ax, run.end_s)
        ax.label_outer()
        _name_pools(ax, state.pools)
    return figure


def _name_pools(ax: Axes, pools: Sequence[str]) -> None:
    """Name of each pool at its first instance, and lines between pools."""
    first = [index for index, pool in enumerate(pools) if pool not in pools[:index]]
    if not first:
        return
    ax.set_ylabel("")
    ax.set_yticks(first, [pools[index] for index in first])
    for index in first[1:]:
        ax.axhline(index - 0.5, color="white", linewidth=1.5)


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
    every = -(-len(rows) // _MAX_LABELS)
    ax.set_yticks(np.arange(0, len(rows), every))
    place = ax.get_position()
    beside = ax.figure.add_axes((place.x1 + 0.15 / WIDTH, place.y0, 0.14 / WIDTH, place.height))
    bar = ax.figure.colorbar(image, cax=beside)
    bar.outline.set_visible(False)
    bar.ax.locator_params(nbins=3)
    beside.grid(visible=False)
