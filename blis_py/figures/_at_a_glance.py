"""A run at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_py.figures.axes import count_axis, time_axis, time_unit
from blis_py.figures.distributions import draw_cdf, legend_room_of
from blis_py.figures.facts import cluster, foot
from blis_py.figures.over_time import NO_STEPS, draw_kv
from blis_py.figures.run import RunView
from blis_py.figures.style import (
    BLUE,
    ORANGE,
    Picture,
    grid,
    headline,
    in_house_style,
    legend_above,
    legend_beside_title,
    say,
)
from blis_py.figures.timeline import TimelineFigure, timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEADLINE = 0.65


@in_house_style
def overview(run: RunView) -> Picture:
    """Latencies of users and occupancy of the cluster."""
    state, legend = timeline(run), legend_room_of(run)
    height = 6.35 + _HEADLINE + legend
    figure, axes = grid(2, 2, height=height, above=_HEADLINE + legend, foot=foot(run.config))
    for metric, ax in zip(("ttft", "itl"), axes, strict=False):
        draw_cdf(ax, run, metric)
    if state is None:
        for ax, title in zip(axes[2:], ("Requests", "KV cache in use, %"), strict=True):
            ax.set_title(title)
            say(ax, NO_STEPS)
    else:
        _draw_requests(axes[2], state, run.end_s)
        draw_kv(axes[3], state, run.end_s)
        for ax in axes[2:]:
            time_axis(ax, run.end_s)
            legend_beside_title(ax)
    headline(figure, summary_line(run))
    legend_above(figure, axes[:2], from_top=_HEADLINE)
    return figure


def summary_line(run: RunView) -> str:
    """The deployment and its outcome in one line."""
    done = int(run.completed.sum())
    text = f"{done:,} of {len(run):,} requests completed on {cluster(run.config)}"
    window_s = run.finish_s[run.completed].max() - run.arrival_s[0] if done else 0.0
    if window_s > 0:
        tokens = run.output_tokens[run.completed].sum()
        text += f"\n{done / window_s:,.1f} requests/s, {tokens / window_s:,.0f} output tokens/s"
    return text


def _draw_requests(ax: Axes, state: TimelineFigure, end_s: float) -> None:
    """Running and waiting requests of the whole cluster."""
    moments = state.time_s / time_unit(end_s)[1]
    for name, rows, colour in (("running", state.running, BLUE), ("waiting", state.waiting, ORANGE)):
        ax.plot(moments, rows.sum(axis=0), color=colour, linewidth=1.6, label=name)
        ax.fill_between(moments, rows.sum(axis=0), color=colour, alpha=0.12, linewidth=0)
    ax.set_title("Requests")
    count_axis(ax)
