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
    headline,
    in_house_style,
    legend_above,
    legend_beside_title,
    panels,
    say,
)
from blis_py.figures.timeline import TimelineFigure, timeline
from blis_py.metrics.registry import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEADLINE = 0.65


@in_house_style
def overview(run: RunView) -> Picture:
    """Latencies of users and occupancy of the cluster."""
    state, legend = timeline(run), legend_room_of(run)
    metrics = [name for name, each in METRICS.items() if each.shown.overview]
    figure, axes = panels(len(metrics) + 2, 2, 3.175, _HEADLINE + legend, foot=foot(run.config))
    *latencies, requests, kv = axes
    for metric, ax in zip(metrics, latencies, strict=True):
        draw_cdf(ax, run, metric)
    if state is None:
        for ax, title in ((requests, "Requests"), (kv, "KV cache in use, %")):
            ax.set_title(title)
            say(ax, NO_STEPS)
    else:
        _draw_requests(requests, state, run.end_s)
        draw_kv(kv, state, run.end_s)
        for ax in (requests, kv):
            time_axis(ax, run.end_s)
            legend_beside_title(ax)
    headline(figure, summary_line(run))
    legend_above(figure, latencies, from_top=_HEADLINE)
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
