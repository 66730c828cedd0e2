"""The cluster over time: running and waiting requests, KV use, preemptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.figures.axes import count_axis, time_axis, time_unit
from blis_py.figures.facts import foot
from blis_py.figures.run import RunView
from blis_py.figures.style import (
    BLUE,
    DASHES,
    SERIES,
    SKY,
    VERMILLION,
    Picture,
    grid,
    in_house_style,
    legend_beside_title,
)
from blis_py.figures.timeline import Floats, TimelineFigure, timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NO_STEPS = "the run did not record its steps"
_MAX_FAINT = 32
"""Most instances with a line of their own; beyond, see `instances`."""


@in_house_style
def state_over_time(run: RunView) -> Picture | None:
    """Running and waiting requests, KV use, instances at work and preemptions.

    `None` if the run did not record its steps.
    """
    state = timeline(run)
    if state is None:
        return None
    panels = 4 if state.preemptions is None else 5
    figure, axes = grid(panels, 1, height=0.9 + 1.75 * panels, gap=0.45, foot=foot(run.config))
    draw_state(axes[0], state, state.running, run.end_s, "Running requests")
    draw_state(axes[1], state, state.waiting, run.end_s, "Waiting requests")
    draw_kv(axes[2], state, run.end_s)
    _draw_at_work(axes[3], state, len(run.instances), run.end_s)
    for ax in (axes[0], axes[1], axes[3]):
        count_axis(ax)
    if state.preemptions is not None:
        _draw_preemptions(axes[4], state.preemptions, state, run.end_s)
    for ax in axes:
        time_axis(ax, run.end_s)
        legend_beside_title(ax)
        ax.label_outer()
    return figure


def draw_state(
    ax: Axes, state: TimelineFigure, rows: Floats, end_s: float, title: str, mean: bool = False
) -> None:
    """The whole cluster as a bold line, single instances as faint ones; or a line for each pool."""
    moments = state.time_s / time_unit(end_s)[1]
    ax.set_title(title)
    if state.pools:
        for index, (pool, own) in enumerate(rows_of_pools(state.pools, rows).items()):
            whole = own.mean(axis=0) if mean else own.sum(axis=0)
            ax.plot(moments, whole, linewidth=1.6, label=pool, **pool_line(index))
        ax.set_ylim(bottom=0)
        return
    if 1 < len(rows) <= _MAX_FAINT:
        for index, row in enumerate(rows):
            label = "each instance" if index == 0 else None
            ax.plot(moments, row, color=SKY, linewidth=0.7, alpha=0.8, label=label)
    whole = rows.mean(axis=0) if mean else rows.sum(axis=0)
    name = "one instance" if len(rows) == 1 else "mean" if mean else "cluster"
    ax.plot(moments, whole, color=BLUE, linewidth=1.6, label=name)
    ax.set_ylim(bottom=0)


def rows_of_pools(pools: Sequence[str], rows: Floats) -> dict[str, Floats]:
    """The rows of each pool's instances."""
    return {
        name: rows[[index for index, pool in enumerate(pools) if pool == name]]
        for name in dict.fromkeys(pools)
    }


def pool_line(index: int) -> dict[str, Any]:
    """Colour and dashes of a pool."""
    return {"color": SERIES[index % len(SERIES)], "linestyle": DASHES[index % len(DASHES)]}


def draw_kv(ax: Axes, state: TimelineFigure, end_s: float) -> None:
    """Draw KV blocks in use, and the total."""
    draw_state(ax, state, state.kv_pct, end_s, "KV cache in use, %", mean=True)
    ax.set_ylim(top=101)


def _draw_at_work(ax: Axes, state: TimelineFigure, there: int, end_s: float) -> None:
    """Draw the number of instances with a step in progress, and the total."""
    moments = state.time_s / time_unit(end_s)[1]
    for index, (name, own) in enumerate(rows_of_pools(state.pools, state.busy).items()):
        label = f"{name}, of {len(own)}"
        ax.plot(moments, own.sum(axis=0), linewidth=1.6, label=label, **pool_line(index))
    if state.pools:
        ax.set_title("Instances at work")
        ax.set_ylim(bottom=0)
        return
    busy = state.busy.sum(axis=0)
    ax.plot(moments, np.full_like(moments, there), color=BLUE, linewidth=1.6, label="there")
    ax.fill_between(moments, busy, color=SKY, alpha=0.5, linewidth=0, label="at work")
    ax.set_title("Instances")
    ax.set_ylim(top=1.08 * there)


def _draw_preemptions(ax: Axes, rows: Floats, state: TimelineFigure, end_s: float) -> None:
    """Draw the cumulative number of preemptions in the cluster."""
    moments = state.time_s / time_unit(end_s)[1]
    ax.plot(moments, np.cumsum(rows.sum(axis=0)), color=VERMILLION, linewidth=1.6)
    ax.set_title("Preemptions so far")
    count_axis(ax)
